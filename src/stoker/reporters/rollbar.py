"""Rollbar: an item for each failed job.

Rollbar may block on the network or start a thread that does. It is called in the reporter's own
thread, which waits for it, so a server that does not answer delays no job.
"""

from __future__ import annotations

from typing import Any, Literal

import rollbar

from stoker.jobs.failures import Failure

from .base import Reporter
from .facts import arguments_of_failure, facts_of_failure


class RollbarReporter(Reporter):
    """Reports with the project's ``rollbar.init()``.

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
            rollbar.report_exc_info(raised, extra_data=facts, payload_data=about, level=level)
        else:
            facts["stoker"]["traceback"] = failure.fault.traceback
            text = f"{failure.task or 'A job'}: {failure.fault.in_one_line}"
            rollbar.report_message(text, level, extra_data=facts, payload_data=about)
        rollbar.wait()  # type: ignore[no-untyped-call] # it has no types
