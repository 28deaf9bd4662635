"""Results and groups by id or name, from the database or from Django's cache.

``wait`` is in milliseconds, as in Django Q; -1 = no limit. The cache holds results of
``cached=True`` (a day) or ``cached=seconds``:

::

    django_q:NAME:ID                 a Task, as a dict
    django_q:NAME:name:TASK_NAME     its id
    django_q:NAME:group:GROUP:3      the id of a finished task of the group, in its slot 3
    django_q:NAME:group:GROUP:count  the number of slots that were taken
    django_q:NAME:group:GROUP:start  the first slot to read, and the longest duration of a member

Each finished task takes the next slot of its group with ``cache.add``, because ``cache.incr`` is
not atomic in some caches. So no member is lost when several end at the same time, except in
``FileBasedCache``, whose ``add`` is not atomic either. Whenever a new page of slots begins, the
start moves past the pages whose slots have all expired, so that readers skip them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, TypeVar

from django.core.cache import caches

from stoker.exceptions import JobFailed
from stoker.inspect.queue_depths import queues
from stoker.jobs.results import pauses

from . import conf
from .models import Task
from .models.task import COLUMNS
from .translation import CACHED_SECONDS

logger = logging.getLogger("stoker")

LONGEST_PAUSE_SECONDS = 0.25
Found = TypeVar("Found")


def result(task_id: str, wait: int = 0, cached: Any = None) -> Any:
    """Return a task's return value; None if it has not ended or is not kept.

    Raises:
        JobFailed: the task failed. ``fetch`` returns its Task, whose result is the error as text.
    """
    row = fetch(task_id, wait, cached)
    if row is None:
        return None
    if not row.success:
        first_line = str(row.result).strip().partition("\n")[0]
        raise JobFailed(f"Task {row.name} of {row.func} failed: {first_line}")
    return row.result


def result_cached(task_id: str, wait: int = 0, broker: Any = None) -> Any:
    """Return a task's return value from the cache."""
    return result(task_id, wait, cached=True)


def fetch(task_id: str, wait: int = 0, cached: Any = None) -> Task | None:
    """Return the Task with that id or name; None = it has not ended or is not kept."""
    look = look_up if _is_cached(cached) else Task.get_task
    return _seen(lambda: look(str(task_id)), wait)


def fetch_cached(task_id: str, wait: int = 0, broker: Any = None) -> Task | None:
    """Return the Task from the cache."""
    return fetch(task_id, wait, cached=True)


def result_group(
    group_id: str,
    failures: bool = False,
    wait: int = 0,
    count: int | None = None,
    cached: Any = None,
) -> list[Any] | None:
    """Return the results of a group's tasks.

    Args:
        failures: include failed tasks, with the error as text.
        wait: milliseconds to wait for ``count`` tasks, or for the first one. When the time is over,
            the existing results are returned.
        count: number of tasks that must have ended, failed ones included.
    """
    rows = fetch_group(group_id, failures, wait, count, cached)
    return None if rows is None else [row.result for row in rows]


def result_group_cached(
    group_id: str,
    failures: bool = False,
    wait: int = 0,
    count: int | None = None,
    broker: Any = None,
) -> list[Any] | None:
    """Return the results of a group's tasks from the cache."""
    return result_group(group_id, failures, wait, count, cached=True)


def fetch_group(
    group_id: str,
    failures: bool = True,
    wait: int = 0,
    count: int | None = None,
    cached: Any = None,
) -> Any:
    """Return the finished Tasks of a group: a query set, or a list from the cache.

    Takes the arguments of ``result_group``. None = there are no such Tasks, or with ``wait=0``
    fewer than ``count``. When another ``wait`` is over, those that have ended are returned.
    """
    rows = fetch_whole_group(group_id, failures, wait, count, cached)
    if rows is None and wait and count is not None:
        rows = fetch_whole_group(group_id, failures, cached=cached)
    return rows


def fetch_whole_group(
    group_id: str,
    failures: bool = True,
    wait: int = 0,
    count: int | None = None,
    cached: Any = None,
) -> Any:
    """Return what ``fetch_group`` returns, but None if fewer than ``count`` Tasks have ended."""
    is_cached = _is_cached(cached)

    def look() -> Any:
        ended = count_group(group_id, cached=is_cached)
        if not ended or (count is not None and ended < count):
            return None
        if is_cached:
            return [row for row in look_up_group(group_id) if failures or row.success]
        return Task.get_task_group(group_id, failures)

    return _seen(look, wait)


def fetch_group_cached(
    group_id: str,
    failures: bool = True,
    wait: int = 0,
    count: int | None = None,
    broker: Any = None,
) -> Any:
    """Return the finished Tasks of a group from the cache."""
    return fetch_group(group_id, failures, wait, count, cached=True)


def count_group(group_id: str, failures: bool = False, cached: Any = None) -> int | None:
    """Return the number of a group's finished tasks; with ``failures=True``, the number of failed
    ones.

    None = the cache has no such group.
    """
    if _is_cached(cached):
        if next(_slots(group_id), None) is None:
            return None
        rows = look_up_group(group_id)
        return sum(not row.success for row in rows) if failures else len(rows)
    return Task.get_group_count(group_id, failures)


def count_group_cached(group_id: str, failures: bool = False, broker: Any = None) -> int | None:
    """Return the number of a group's finished tasks from the cache."""
    return count_group(group_id, failures, cached=True)


def delete_group(group_id: str, tasks: bool = False, cached: Any = None) -> Any:
    """Remove the group's name from its Tasks; with ``tasks=True`` delete them. Cached ones are
    always deleted.

    Returns:
        The result of the query set: the number of changed rows, or with ``tasks=True`` the tuple
        of ``QuerySet.delete()``. From the cache, the number of results.
    """
    if _is_cached(cached):
        return forget_group(group_id)
    return Task.delete_group(group_id, tasks)


def delete_group_cached(group_id: str, broker: Any = None) -> Any:
    """Delete the cached results of a group."""
    return delete_group(group_id, cached=True)


def delete_cached(task_id: str, broker: Any = None) -> bool:
    """Delete a cached result. Return False if it is not cached."""
    return forget(str(task_id))


def queue_size(broker: Any = None) -> int:
    """Return the number of waiting jobs in the queue of this cluster, without running ones."""
    name = getattr(broker, "list_key", None) or conf.queue()
    return sum(
        one.ready + one.deferred + one.blocked
        for one in queues(conf.settings())
        if one.name == name
    )


def _is_cached(cached: Any) -> bool:
    return bool(conf.Conf.CACHED if cached is None else cached)


def _seen(look: Callable[[], Found | None], wait: int) -> Found | None:
    """Call ``look`` repeatedly, until it returns a value or ``wait`` milliseconds have passed."""
    timeout = None if wait < 0 else wait / 1000
    found = look()
    for pause in pauses(timeout, LONGEST_PAUSE_SECONDS) if wait else ():
        if found is not None:
            break
        time.sleep(pause)
        found = look()
    return found


PAGE = 100
"""Number of slots that are read together."""
MOST_TRIES = 100


def keep(row: Task, seconds: float) -> None:
    """Put a result into the cache."""
    cache = _cache()
    row.open_values()
    cache.set(_key(row.pk), {name: getattr(row, name) for name in COLUMNS}, seconds)
    cache.set(_key("name", row.name), row.pk, seconds)
    if row.group:
        _join(row.group, row.pk, seconds)


def look_up(task_id: str) -> Task | None:
    """Return the cached result with that id or name."""
    cache = _cache()
    found = cache.get(_key(_id(task_id)))
    if found is None:
        named = cache.get(_key("name", task_id))
        found = None if named is None else cache.get(_key(named))
    return None if found is None else Task(**found)


def look_up_group(group_id: str) -> list[Task]:
    """Return the cached results of a group, sorted by the end of their tasks."""
    found: dict[str, Any] = {}
    for slots in _slots(group_id):
        found |= _cache().get_many([_key(task_id) for task_id in slots.values()])
    return sorted((Task(**values) for values in found.values()), key=lambda row: row.stopped)


def forget(task_id: str) -> bool:
    """Delete a cached result. Return False if it is not cached."""
    row = look_up(task_id)
    return row is not None and bool(_cache().delete(_key(row.pk)))


def forget_group(group_id: str) -> int:
    """Delete the cached results of a group. Return their number."""
    cache, count = _cache(), 0
    for slots in _slots(group_id):
        results = [_key(task_id) for task_id in slots.values()]
        count += len(cache.get_many(results))
        cache.delete_many([*results, *(_slot(group_id, slot) for slot in slots)])
    cache.delete(_counter(group_id))
    cache.delete(_start(group_id))  # a counter that is made meanwhile begins behind it
    return count


def _join(group_id: str, task_id: str, seconds: float) -> None:
    """Put a task into a free slot of its group."""
    cache, counter = _cache(), _counter(group_id)
    for _ in range(MOST_TRIES):
        try:
            taken = cache.incr(counter)
        except ValueError:  # it is not there, or has just expired
            cache.add(counter, _end(group_id), max(seconds, CACHED_SECONDS))
            if cache.get(counter) is None:
                logger.debug("The cache does not keep group %r.", group_id)
                return
            continue
        if taken is None:  # some caches return None if their server does not answer
            break
        if cache.add(_slot(group_id, taken - 1), task_id, seconds):
            _extend(group_id, taken - 1, seconds)
            return
    logger.warning("Task %s could not be added to its group %r in the cache.", task_id, group_id)


def _extend(group_id: str, slot: int, seconds: float) -> None:
    """Keep the counter and the start of a group at least as long as its members. If this slot
    begins a page, move the start past pages without members."""
    cache, key = _cache(), _start(group_id)
    before = start, longest = _start_and_longest(group_id)
    longest = max(longest, seconds)
    if slot % PAGE == 0:
        # Not past the previous page: tasks may have taken slots of it that they have yet to fill.
        while start < slot - PAGE and not _page(group_id, start):
            start += PAGE
    if (start, longest) != before or not cache.touch(key, longest):
        cache.set(key, (start, longest), longest)
    cache.touch(_counter(group_id), longest)


def _end(group_id: str) -> int:
    """Return the slot behind the last one with a member."""
    start, _ = _start_and_longest(group_id)
    return max([start, *(max(slots) + 1 for slots in _slots(group_id))])


def _slots(group_id: str) -> Iterator[dict[int, str]]:
    """Yield slot -> task id of a group, in pages, without expired slots."""
    start, _ = _start_and_longest(group_id)
    count = _cache().get(_counter(group_id))
    # Slots beyond the counter were taken by earlier versions, one after another. If the counter is
    # lost, some before them may have expired.
    fewest = 1 if count is None else PAGE
    while True:
        found = _page(group_id, start)
        if found:
            yield found
        start += PAGE
        if start >= (count or 0) and len(found) < fewest:
            return


def _page(group_id: str, start: int) -> dict[int, str]:
    slots = {_slot(group_id, slot): slot for slot in range(start, start + PAGE)}
    return {slots[key]: task_id for key, task_id in _cache().get_many(list(slots)).items()}


def _start_and_longest(group_id: str) -> tuple[int, float]:
    """Return the first slot to read, and how long the counter and the start are kept (seconds)."""
    start, longest = _cache().get(_start(group_id), (0, CACHED_SECONDS))
    return start, longest


def _start(group_id: str) -> str:
    return _key("group", group_id, "start")


def _counter(group_id: str) -> str:
    return _key("group", group_id, "count")


def _slot(group_id: str, slot: int) -> str:
    return _key("group", group_id, str(slot))


def _id(task_id: str) -> str:
    return str(task_id).replace("-", "") if len(str(task_id)) == 36 else str(task_id)


def _key(*parts: str) -> str:
    text = ":".join(("django_q", conf.Conf.PREFIX, *parts))
    is_plain = len(text) <= 200 and text.isascii() and text.isprintable() and " " not in text
    return text if is_plain else f"django_q:{sha256(text.encode()).hexdigest()}"


def _cache() -> Any:
    return caches[conf.Conf.CACHE]
