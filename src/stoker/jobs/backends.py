"""Backends in ``TASKS`` that share a database, and the rows that belong to each. The rows of jobs
and dead letters name no backend, but a queue, and their packages are signed for a ``CLUSTER``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.db.models import Q

from stoker.brokers.adapters import settings_with
from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.setting_values import Kept, longest

from .package import sealer_for


def backends_with(settings: Settings) -> list[Settings]:
    """Return these settings, and those of the other backends with the same database."""
    others = settings_with(settings.database)
    return [settings, *(one for one in others if one.alias != settings.alias)]


def able_backends(settings: Settings, queue: str, package: bytes) -> Iterator[Settings]:
    """Yield the backends to which a job with this queue and package may belong, these settings
    first."""
    for one in backends_with(settings):
        if not one.queues or queue in one.queues:
            try:
                sealer_for(one).open_without_arguments(package)
            except PackageError:
                continue
            yield one


def backend_of(settings: Settings, queue: str, package: bytes) -> Settings:
    """Return the backend to which a job with this queue and package belongs. These settings come
    first, and also count if no backend can open the package."""
    return next(able_backends(settings, queue, package), settings)


def retentions(settings: Settings, keep_of: Callable[[Settings], Kept]) -> list[tuple[Q, Kept]]:
    """Return how long to keep the jobs or dead letters of the backends with this database: the
    condition for some of the rows, and their retention.

    Rows that may belong to several backends are kept as long as the one that keeps them longest.
    Those are rows in a queue that several backends have, and in one that no backend has any more.
    """
    backends = backends_with(settings)
    if len({keep_of(one) for one in backends}) == 1:
        return [(Q(), keep_of(settings))]
    any_queue = [one for one in backends if not one.queues]
    named = sorted({queue for one in backends for queue in one.queues})
    queues: dict[Kept, list[str]] = {}
    for queue in named:
        owners = [*any_queue, *(one for one in backends if queue in one.queues)]
        queues.setdefault(longest(map(keep_of, owners)), []).append(queue)
    found = [(Q(queue__in=some), keep) for keep, some in queues.items()]
    return [*found, (~Q(queue__in=named), longest(map(keep_of, any_queue or backends)))]
