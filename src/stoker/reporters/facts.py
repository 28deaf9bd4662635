"""The data about a job that reporters send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.views.debug import SafeExceptionReporterFilter

from stoker.conf import settings_for
from stoker.exceptions import UnknownTask
from stoker.jobs.failures import Failure
from stoker.jobs.package import Package
from stoker.jobs.results import Result
from stoker.jobs.running import Running
from stoker.jobs.sealing import WORKFLOW
from stoker.schedules.fire import MOMENT, NAME
from stoker.tasks.arguments import HIDDEN, hidden_pattern, is_secret, names_to_hide, shown_call
from stoker.tasks.registry import task_of

LONGEST_VALUE = 500

Facts = dict[str, Any]


class _Secrets(SafeExceptionReporterFilter):
    """Hides values whose names sound secret, in nested containers too, by the rule of Django's
    error pages. It applies in addition to the rule of the setting ``REDACT``."""

    cleansed_substitute = HIDDEN


_secrets = _Secrets()


def facts_of_attempt(running: Running, result: Result[Any]) -> Facts:
    """Return the data about a running attempt."""
    return {
        "job_id": str(running.job_id),
        "task": running.task,
        "queue": running.queue,
        "attempt": running.attempt,
        "backend": running.backend,
        "worker": result.worker_ids[-1] if result.worker_ids else "",
        "enqueued_at": result.enqueued_at.isoformat() if result.enqueued_at else "",
        **_origin(running.metadata),
    }


def facts_of_cancelled(failure: Failure) -> Facts:
    """Return the data about a cancelled attempt, with the same names as ``facts_of_attempt``."""
    facts = facts_of_failure(failure)
    return {name: value for name, value in facts.items() if name not in ("reason", "is_final")}


def facts_of_failure(failure: Failure) -> Facts:
    package = failure.package
    enqueued_at = datetime.fromtimestamp(package.enqueued_at, UTC).isoformat() if package else ""
    return {
        "job_id": str(failure.job_id),
        "task": failure.task,
        "queue": failure.queue,
        "attempt": failure.attempt,
        "backend": failure.backend,
        "worker": failure.worker_id,
        "enqueued_at": enqueued_at,
        "reason": failure.reason,
        "is_final": failure.is_final,
        **_origin(package.metadata if package else {}),
    }


def arguments_of_failure(failure: Failure) -> Facts:
    """Return name -> value of the job's arguments. Secret values are hidden."""
    if failure.package is None:
        return {}
    call = shown_call(failure.package, settings_for(failure.backend).redact)
    return {name: _in_short(name, value) for name, value in call.pairs}


def secrets_hider(package: Package, backend: str) -> Callable[[Any], Any]:
    """Return a function that hides the hidden arguments of a job in what an SDK has gathered.

    It replaces values of variables whose names are hidden, and the texts of hidden arguments that
    have four characters or more, in nested dicts and lists, too.
    """
    secrets = settings_for(backend).redact
    try:
        task = task_of(package)
    except UnknownTask:
        task = None
    pattern, names = hidden_pattern(task, package, secrets), names_to_hide(task, secrets)

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(HIDDEN, value)
        if isinstance(value, Mapping):
            return {
                name: HIDDEN if is_secret(str(name), names) else hide(one)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [hide(one) for one in value]
        return HIDDEN if pattern.fullmatch(str(value)) else value

    return hide


def _origin(metadata: Mapping[str, str]) -> Facts:
    known = {"schedule": NAME, "scheduled_for": MOMENT, "workflow": WORKFLOW}
    return {fact: metadata[key] for fact, key in known.items() if key in metadata}


def _in_short(name: str, value: Any) -> str:
    try:
        cleansed = _secrets.cleanse_setting(name, value)
        told = repr(cleansed)
    except Exception as error:  # noqa: BLE001 - a value's __repr__ may raise anything
        told = f"<its repr() raised {type(error).__name__}>"
    return told if len(told) <= LONGEST_VALUE else f"{told[:LONGEST_VALUE]}..."
