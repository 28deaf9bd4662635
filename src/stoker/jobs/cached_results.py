"""Results in a Django cache (``RESULTS: "cache:NAME"``), for jobs that succeeded at once and have
no consequences. All other results are in the store.

An entry is written before the job's row is deleted, and readers look for the row first. So an entry
of a job that has not ended is ignored: its attempt may have come too late or not been recorded. If
the cache refuses an entry, the result stays in the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends import dummy, filebased, locmem

from stoker.conf import Settings
from stoker.models import Job
from stoker.signals import tell

T = TypeVar("T")

MOST_SECONDS = 5.0
"""Time-out of the cache. Recording waits for it."""
PAUSE_SECONDS = 10.0
"""Pause in seconds before a cache is used again after it failed."""
FIELDS = (
    "task", "queue", "priority", "package", "enqueued_at", "status", "attempts", "worker_id",
    "started_at", "finished_at", "value",
)  # fmt: skip

_asked_again_at: dict[str, float] = {}


def keep(settings: Settings, jobs: Collection[Job]) -> set[UUID]:
    """Write the jobs to the cache with all fields of their rows. Return their ids, without
    the jobs that the cache refused."""
    name, seconds = settings.results_cache, settings.keep_results.successful_seconds
    if not jobs or name is None or time.monotonic() < _asked_again_at.get(name, 0.0):
        return set()
    entries = {_key(job.pk): {field: getattr(job, field) for field in FIELDS} for job in jobs}
    began = time.monotonic()
    try:
        not_taken = _in_time(lambda: _set(name, entries, seconds))
    except Exception as error:  # noqa: BLE001 - each cache has its own errors; recording goes on
        _asked_again_at[name] = time.monotonic() + PAUSE_SECONDS
        tell("results_not_cached", name=name, error=error, seconds=time.monotonic() - began)
        return set()
    return {job.pk for job in jobs if _key(job.pk) not in not_taken}


def look_up(settings: Settings, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    """Return job id -> job for the results that the cache holds; empty if it is unreachable."""
    name = settings.results_cache
    if name is None or not job_ids:
        return {}
    try:
        found: Mapping[str, dict[str, Any]] = caches[name].get_many([_key(one) for one in job_ids])
    except Exception as error:  # noqa: BLE001 - as above
        tell("results_not_read", name=name, error=error)
        return {}
    return {
        job_id: Job(pk=job_id, **found[key]) for job_id in job_ids if (key := _key(job_id)) in found
    }


def why_not(name: str) -> str:
    """Return why the cache of this name cannot keep results, or "" if it can."""
    try:
        cache = caches[name]
    except InvalidCacheBackendError:
        return "CACHES has no cache of that name"
    if isinstance(cache, locmem.LocMemCache):
        return "it is in the memory of one process, and no other process sees it"
    if isinstance(cache, dummy.DummyCache):
        return "it keeps nothing"
    if isinstance(cache, filebased.FileBasedCache):
        return "it is on one host, and others do not see it"
    return ""


def _set(name: str, entries: dict[str, Any], seconds: float | None) -> Collection[str]:
    cache = caches[name]
    try:
        return cache.set_many(entries, seconds)
    finally:
        cache.close()  # the connection belongs to this thread


def _in_time(call: Callable[[], T]) -> T:
    """Call a function with a time-out, because a cache may be configured without one.

    Raises TimeoutError if it takes too long. The call then continues in an abandoned thread.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="stoker-cache", daemon=True)
    thread.start()
    thread.join(MOST_SECONDS)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {MOST_SECONDS:g} s")
    return answers[0]


def _key(job_id: UUID) -> str:
    return f"stoker:result:{job_id.hex}"
