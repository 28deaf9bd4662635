"""Log records as JSON, one line each, for whoever collects logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

OF_JOB = {
    "stoker_job_id": "job_id",
    "stoker_task": "task",
    "stoker_queue": "queue",
    "stoker_attempt": "attempt",
    "stoker_event": "event",
}
"""Attribute of a record -> key, where it is not empty."""
KNOWN = {
    *vars(logging.LogRecord("", 0, "", 0, "", (), None)),
    *OF_JOB,
    "asctime",
    "message",
    "taskName",
}
"""Attributes that any record has: what else there is was given as ``extra``."""


class JsonLines(logging.Formatter):
    """A formatter for ``LOGGING``: ``{"()": "stoker.json_lines.JsonLines"}``.

    Each line has ``time`` (UTC), ``level``, ``logger``, ``message``, ``process`` and ``pid``;
    inside a job ``job_id``, ``task``, ``queue`` and ``attempt``; of Stoker's own events ``event``,
    its name; of an error ``exception``; and whatever was given as ``extra``.
    """

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.processName,
            "pid": record.process,
        }
        for attribute, key in OF_JOB.items():
            if value := getattr(record, attribute, ""):
                told[key] = value
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            told["stack"] = record.stack_info
        extra = {name: value for name, value in vars(record).items() if name not in KNOWN}
        return json.dumps({**extra, **told}, default=_as_text, ensure_ascii=False)


def _as_text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a value's __str__ may raise anything
        return f"<its text could not be had: {type(error).__name__}>"
