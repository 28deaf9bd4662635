"""Rollbar: an item for each failed job.

Rollbar may block on the network or start a thread that does. It is called in the reporter's own
thread, which waits for it, so a server that does not answer delays no job.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

import rollbar
from rollbar.lib import events

from stoker.jobs.failures import Failure
from stoker.operations.tracebacks import is_own_path

from .base import Reporter
from .facts import arguments_of_failure, facts_of_failure, secrets_hider

_hide: ContextVar[Callable[[Any], Any] | None] = ContextVar("stoker_rollbar", default=None)
"""Hides the arguments of the job that is being reported."""


class RollbarReporter(Reporter):
    """Reports to Rollbar, as the project's ``rollbar.init()`` has configured it.

    Args:
        arguments: whether items contain the job's arguments.
        report_retries: whether failed attempts that will be retried are reported as warnings.
        init: other options are passed to ``rollbar.init()``, which is called if there are any.
    """

    def __init__(
        self, *, arguments: bool = True, report_retries: bool = False, **init: Any
    ) -> None:
        self._shows_arguments = arguments
        self._reports_retries = report_retries
        if init:
            rollbar.init(**{"allow_logging_basic_config": False, **init})
        events.add_payload_handler(_hide_secrets)

    def on_failure(self, failure: Failure) -> None:
        if not (failure.is_final or self._reports_retries):
            return
        facts = {"stoker": facts_of_failure(failure)}
        if self._shows_arguments:
            facts["arguments"] = arguments_of_failure(failure)
        level: Literal["error", "warning"] = "error" if failure.is_final else "warning"
        about = {"context": failure.task or "an unknown task", "framework": "stoker"}
        if failure.exception is not None:
            error = failure.exception
            raised = (type(error), error, error.__traceback__)
            if failure.package is not None:
                _hide.set(secrets_hider(failure.package, failure.backend))
            rollbar.report_exc_info(raised, extra_data=facts, payload_data=about, level=level)
            _hide.set(None)
        else:
            facts["stoker"]["traceback"] = failure.fault.traceback
            text = f"{failure.task or 'A job'}: {failure.fault.in_one_line}"
            rollbar.report_message(text, level, extra_data=facts, payload_data=about)
        rollbar.wait()  # type: ignore[no-untyped-call] # it has no types


def _hide_secrets(payload: Any, **_: Any) -> Any:
    """Hide the arguments of the job in messages and local variables of an item. Leave out the
    variables of Stoker's own frames, which have the whole call."""
    hide = _hide.get()
    if hide is None:
        return payload
    body = payload["data"]["body"]
    for trace in body.get("trace_chain") or [body["trace"]]:
        trace["exception"]["message"] = hide(trace["exception"].get("message"))
        for frame in trace["frames"]:
            if is_own_path(frame["filename"]):
                frame.pop("locals", None)
            elif "locals" in frame:
                frame["locals"] = hide(frame["locals"])
    return payload
