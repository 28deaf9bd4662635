"""Hooks: jobs that are enqueued when another job has ended, in the transaction that records it.

The hooks travel in the package of the job, as JSON with the codec's tags:

::

    [[when, task, queue, priority, [max_attempts, max_crashes, timeout_seconds], args, kwargs,
      [need, ...], receives, extras], ...]

``extras`` is left out if it is empty, because a package with extras has a version that earlier
clusters do not run. It may have these keys: "run_after" and "expires_at" in seconds since 1970,
"run_after_seconds" and "expires_seconds" after the job's end, and "hooks", the hooks of the hook.
Or, if a function also records the end in the same transaction:

::

    [["record", the dotted path of a function of (settings, [(ended, package), ...])], ...]

The outcome of the job travels in the package of the hook:

::

    [job id, task, status, value, exception_class, message, attempt]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError
from django.utils.module_loading import import_string

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.exceptions import PackageError, PackageTooLarge, StokerError
from stoker.jobs.package import JobOptions, Package, sealer_for
from stoker.models import Job
from stoker.models.job import Message
from stoker.models.need import NewNeed
from stoker.tasks.registry import find_task
from stoker.values import codec
from stoker.values.ids import BELOW_MARKS, LINKED, STEP

from .deliver import Ended

logger = logging.getLogger("stoker")

SUCCESS, FAILURE, FINISH = "success", "failure", "finish"
RECORD = "record"


@dataclass(frozen=True, slots=True)
class About:
    """The job that a hook belongs to, and its outcome."""

    job_id: UUID
    task: str
    status: str
    value: bytes | None
    exception_class: str
    message: str
    attempt: int

    def as_text(self) -> str:
        values = [getattr(self, name) for name in self.__slots__]
        return codec.write(codec.encode(values)).decode()


def about_of_ended(ended: Ended, task: str) -> About:
    return About(
        ended.job_id,
        task,
        ended.status,
        ended.value,
        ended.exception_class,
        ended.message,
        ended.attempt,
    )


def about_of(text: str) -> About:
    """Return the data about the ended job from a hook's package."""
    return About(*codec.read(text.encode()))


def call_hooks(settings: Settings, ended: Sequence[Ended]) -> None:
    """Enqueue the hooks of ended jobs, in the open transaction. Skip jobs whose package cannot be
    opened."""
    sealer = sealer_for(settings)
    packages = Job.objects.using(settings.database).packages([one.job_id for one in ended])
    messages: list[Message] = []
    recorded: dict[str, list[tuple[Ended, bytes]]] = {}
    for one in ended:
        try:
            package = sealer.open_without_arguments(packages.get(one.job_id, b""))
        except PackageError:
            continue
        hooks = codec.read(package.options.hooks.encode()) if package.options.hooks else []
        for hook in hooks:
            if hook[0] == RECORD:
                recorded.setdefault(hook[1], []).append((one, packages[one.job_id]))
        wanted = {FINISH, SUCCESS if one.has_succeeded else FAILURE}
        messages += [
            _message(settings, one, package, number, hook[1:])
            for number, hook in enumerate(hooks)
            if hook[0] in wanted
        ]
    for path, ends in recorded.items():  # the packages are signed, and so is what is called
        if (record := _recorder(path, ends)) is not None:
            record(settings, ends)
    broker_for(settings).deliver(messages)


def _recorder(path: str, ends: Sequence[tuple[Ended, bytes]]) -> Any:
    """Return the function that also records these ends. If it cannot be imported, for example
    because its app was removed, log that and return None: the jobs have ended nevertheless."""
    try:
        return import_string(path)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        job_ids = ", ".join(str(one.job_id) for one, _ in ends[:3])
        logger.exception("%s cannot be imported to record the end of job %s.", path, job_ids)
        return None


def _message(
    settings: Settings, ended: Ended, package: Package, number: int, hook: Sequence[Any]
) -> Message:
    task, queue, priority, options, args, kwargs, needs, receives, *more = hook
    extras = more[0] if more else {}
    about = about_of_ended(ended, package.task)
    now = time.time()
    hook_id = _id_of(ended.job_id, number)
    max_attempts, max_crashes, timeout_seconds = options
    job_options = JobOptions(
        max_attempts,
        max_crashes,
        timeout_seconds,
        expires_at=_moment(extras, "expires_at", "expires_seconds", now),
        receives=receives,
        hooks=extras.get("hooks", ""),
        about=about.as_text(),
    )
    own = Package(hook_id, task, tuple(args), kwargs, queue, priority, now, job_options)
    sealer = sealer_for(settings)
    try:
        data = sealer.seal(own)
    except PackageTooLarge:  # the worker then reads the value from the store
        short = replace(about, value=None, message=about.message[:1000])
        own = replace(own, options=replace(job_options, about=short.as_text()))
        # Its arguments were accepted with those of its job, which would otherwise never end.
        data = sealer.seal(own, is_limited=False)
    stated = [NewNeed(*need) for need in needs]
    stays = _is_atomic(task)
    due = _moment(extras, "run_after", "run_after_seconds", now)
    return Message(hook_id, task, queue, priority, data, due, now, stated, stays_in_store=stays)


def _moment(extras: Mapping[str, Any], at: str, seconds: str, now: float) -> float | None:
    """Return a moment that a hook states, or the number of seconds after now."""
    return now + extras[seconds] if seconds in extras else extras.get(at)


def _is_atomic(path: str) -> bool:
    """Return whether a task records itself, so that its jobs have to wait in the store."""
    try:
        return bool(getattr(find_task(path), "atomic", False))
    except StokerError:
        return False


def _id_of(job_id: UUID, number: int) -> UUID:
    """Return the id of a hook. It depends only on the job and the number, so the hook is enqueued
    once."""
    digest = sha256(job_id.bytes + bytes([number])).digest()
    random_bits = int.from_bytes(digest[:8], "big") & BELOW_MARKS
    return UUID(int=job_id.int & ~(BELOW_MARKS | STEP) | LINKED | random_bits)
