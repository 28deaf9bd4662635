"""Change how many jobs may run at once under a key, while they run."""

from __future__ import annotations

from django.db import transaction

from stoker.brokers import broker_for
from stoker.conf import settings_for
from stoker.models import GuardKey, Need
from stoker.models.admission import call_next
from stoker.models.clock import database_now_us
from stoker.progress import explained

from .keys import text_key_id, text_key_name


def set_limit(key: str, n: int | None, *, backend: str = "default") -> None:
    """Let at most ``n`` jobs with ``limit=Limit(..., key)`` run at once, from now on and whatever
    their tasks say. Who runs already goes on; who waits and has room now is called.

    Args:
        key: the text that the key of the limit comes to, as in ``"tenant:7"``.
        n: 0 = none may start; None = as the newest job's task says again.
        backend: the entry of ``TASKS`` whose jobs are meant.

    Raises:
        TypeError, ValueError: an argument cannot be used.
        BrokerUnavailable, NotMigrated: it could not be stored.
    """
    if not isinstance(key, str):
        raise TypeError(f"The key of a limit is a text, but this is {key!r}.")
    if n is not None and (type(n) is not int or n < 0):
        raise ValueError(f"n={n!r}: write a whole number from 0 on, or None.")
    settings = settings_for(backend)
    alias, key_id = settings.database, text_key_id(Need.Kind.LIMIT.value, key)
    keys = GuardKey.objects.using(alias)
    with explained(alias), transaction.atomic(using=alias):
        keys.bulk_create(
            [
                GuardKey(
                    id=key_id,
                    kind=Need.Kind.LIMIT.value,
                    name=text_key_name(Need.Kind.LIMIT.value, key),
                    fence=database_now_us(alias),
                )
            ],
            ignore_conflicts=True,
        )
        row = keys.lock([key_id])[key_id]
        row.places_set = n
        row.save(using=alias, update_fields=["places_set"])
        holders = Need.objects.using(alias).holders([key_id])[key_id]
        queues = call_next(alias, row, max(0, row.room - len(holders)))
        if queues:
            broker = broker_for(settings)
            transaction.on_commit(lambda: broker.wake_up(queues), using=alias, robust=True)
