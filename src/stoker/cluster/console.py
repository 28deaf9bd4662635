"""The log of a cluster: levels, handlers and formats."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from stoker.compat import TASKS_APP
from stoker.jobs.running import current, job_lines
from stoker.json_lines import JsonLines
from stoker.values.text import shown_text

FORM = "%(asctime)s %(levelname)-7s [%(processName)s] %(message)s"


class PlainLines(logging.Formatter):
    """Formats records as text for a terminal. A line that a job logs begins with the job."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        running = current.get()
        if running is not None and not hasattr(record, "stoker_event"):
            record.message = f"{running.task}[{running.short_id}] {record.message}"
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return shown_text(super().format(record))


class Console(logging.StreamHandler[Any]):
    """Writes a record to standard error if the project has no handler for it."""

    def filter(self, record: logging.LogRecord) -> Any:
        """Drop the record if a logger below the root has a handler for it."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger.parent is not None:
            if not all(isinstance(one, logging.NullHandler) for one in logger.handlers):
                return False
            logger = logger.parent
        return super().filter(record)


def log_to_console(level: str, *, as_json: bool = False) -> None:
    """Show Stoker's log messages from this level on, and silence Django's own about tasks.

    Records without a handler of the project's go to standard error. Levels that the project has
    set are kept.
    """
    logger = logging.getLogger("stoker")
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if job_lines.level == logging.NOTSET:
        job_lines.setLevel(logging.INFO if _shows_jobs(level) else logging.WARNING)
    _silence_django(logging.getLogger(TASKS_APP))
    formatter = JsonLines() if as_json else PlainLines(FORM)
    for handler in logging.getLogger("django").handlers:
        if type(handler) is logging.StreamHandler and handler.formatter is None:
            handler.setFormatter(formatter)  # Django's default handler, which has no formatter
    root = logging.getLogger()
    if root.handlers:
        return
    console = Console()
    console.setFormatter(formatter)
    root.addHandler(console)
    if as_json:
        _log_what_python_prints(logging.getLogger("stoker.python"))


def _shows_jobs(level: str) -> bool:
    """Return whether each start and end of a job is logged. Two lines per job cost a busy
    cluster throughput, so they are written only to terminals or on request."""
    return level == "DEBUG" or (level == "INFO" and sys.stderr.isatty())


def _silence_django(logger: logging.Logger) -> None:
    """Turn off Django's lines about tasks, which repeat ours, unless the project set them up.

    Django's default LOGGING mails each failed task to ADMINS.
    """
    if logger.level == logging.NOTSET and not logger.handlers:
        logger.setLevel(logging.CRITICAL)


def _log_what_python_prints(logger: logging.Logger) -> None:
    """Log warnings and unhandled errors, which would be text between lines of JSON."""

    def log_error(*error: Any) -> None:
        logger.error("Unhandled error.", exc_info=error)

    logging.captureWarnings(True)
    sys.excepthook = log_error
    threading.excepthook = lambda failed: log_error(*failed[:3])
