"""A log formatter that writes one JSON object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from stoker.values.text import shown_json

OF_JOB = {
    "stoker_job_id": "job_id",
    "stoker_task": "task",
    "stoker_queue": "queue",
    "stoker_attempt": "attempt",
    "stoker_event": "event",
}
"""Attribute of a log record -> key in JSON. Empty attributes are left out."""
KNOWN = {
    *vars(logging.LogRecord("", 0, "", 0, "", (), None)),
    *OF_JOB,
    "asctime",
    "message",
    "taskName",
}
"""Attributes that every log record has. All others come from ``extra``."""


class JsonLines(logging.Formatter):
    """A formatter for ``LOGGING``: ``{"()": "stoker.json_lines.JsonLines"}``.

    Each line has ``time`` (UTC), ``level``, ``logger``, ``message``, ``process`` and ``pid``;
    inside a job also ``job_id``, ``task``, ``queue`` and ``attempt``; Stoker's own events have
    ``event``, errors have ``exception``. Values from ``extra`` are added; one that JSON cannot
    hold, such as a dict whose keys are tuples, is added as text.
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
        elif record.exc_text:
            told["exception"] = record.exc_text
        if record.stack_info:
            told["stack"] = record.stack_info
        extra = {name: value for name, value in vars(record).items() if name not in KNOWN}
        try:
            line = _as_json({**told, **extra, **told})
        except (TypeError, ValueError, RecursionError):  # a dict's key, or a container in itself
            storable = {name: _as_storable(value) for name, value in extra.items()}
            line = _as_json({**told, **storable, **told})
        return shown_json(line)


def _as_json(told: Any) -> str:
    return json.dumps(told, default=_as_text, ensure_ascii=False)


def _as_storable(value: Any) -> Any:
    """Return the value, or its text if JSON cannot hold it."""
    try:
        _as_json(value)
    except (TypeError, ValueError, RecursionError):
        return _as_text(value)
    return value


def _as_text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a value's __str__ may raise anything
        return f"<its text could not be read: {type(error).__name__}>"
