"""Results in Django's cache: for ``cached=True`` (a day) or ``cached=seconds``.

::

    django_q:NAME:ID                 a Task, as a dict
    django_q:NAME:name:TASK_NAME     its id
    django_q:NAME:group:GROUP:3      the id of the third of a group that has ended

A slot of a group is taken by ``add``, which only one can do, so that no member is lost when several
end at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.cache import caches

from . import conf
from .models import Task

FIELDS = (
    "id", "name", "func", "hook", "args", "kwargs", "result", "group", "cluster", "started",
    "stopped", "success", "attempt_count",
)  # fmt: skip
GONE = ""
"""A slot whose result was deleted: those after it still count."""


def keep(row: Task, seconds: float) -> None:
    """Put a result into the cache."""
    from .recording import opened

    cache, shown = _cache(), opened(row)
    cache.set(_key(row.pk), {name: getattr(shown, name) for name in FIELDS}, seconds)
    cache.set(_key("name", row.name), row.pk, seconds)
    if row.group:
        slot = 0
        while not cache.add(_key("group", row.group, str(slot)), row.pk, seconds):
            slot += 1


def look_up(task_id: str) -> Task | None:
    """The result of that id or name."""
    cache = _cache()
    found = cache.get(_key(_id(task_id)))
    if found is None:
        found = cache.get(_key(str(cache.get(_key("name", task_id), GONE))))
    return None if found is None else Task(**found)


def has_group(group_id: str) -> bool:
    """Whether any result of that group was put there, and the group was not deleted."""
    return next(_members(group_id), None) is not None


def look_up_group(group_id: str) -> list[Task]:
    """The results of a group, in the order in which they ended."""
    found = _cache().get_many([_key(one) for one in _members(group_id) if one != GONE])
    rows = [Task(**values) for values in found.values()]
    return sorted(rows, key=lambda row: row.stopped)


def forget(task_id: str) -> bool:
    """Take a result out of the cache. False: it is not there."""
    row = look_up(task_id)
    return row is not None and bool(_cache().delete(_key(row.pk)))


def forget_group(group_id: str) -> int:
    """Take a group out of the cache. Returns how many results it had."""
    members = [one for one in _members(group_id) if one != GONE]
    count = len(_cache().get_many([_key(one) for one in members]))
    _cache().delete_many([_key(one) for one in members])
    _cache().delete_many([_key("group", group_id, str(slot)) for slot in range(len(members))])
    return count


def _members(group_id: str) -> Iterator[str]:
    cache, slot = _cache(), 0
    while (found := cache.get(_key("group", group_id, str(slot)))) is not None:
        yield str(found)
        slot += 1


def _id(task_id: str) -> str:
    return str(task_id).replace("-", "") if len(str(task_id)) == 36 else str(task_id)


def _key(*parts: str) -> str:
    from hashlib import sha256

    text = ":".join(("django_q", conf.Conf.PREFIX, *parts))
    is_plain = len(text) <= 200 and text.isascii() and text.isprintable() and " " not in text
    return text if is_plain else f"django_q:{sha256(text.encode()).hexdigest()}"


def _cache() -> Any:
    return caches[conf.Conf.CACHE]
