"""Deliver: jobs that follow from others are enqueued in the transaction that recorded those."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from stoker.brokers import broker_for
from stoker.brokers.base import Message
from stoker.brokers.outgoing import as_message, as_row, carry
from stoker.conf import Settings
from stoker.events import tell
from stoker.exceptions import BrokerError
from stoker.models.commits import after_commit
from stoker.models.outbox import Outgoing

AT_ONCE = 1000


def deliver(settings: Settings, messages: Sequence[Message]) -> None:
    """Enqueue these, in the open transaction. For a broker outside the store they are put into the
    outbox, and brought from there after the commit; what is left behind, every scheduler finds."""
    if not messages:
        return
    broker, alias = broker_for(settings), settings.database
    inside = [message for message in messages if broker.joins(message)]
    outside = [message for message in messages if not broker.joins(message)]
    if inside:
        for start in range(0, len(inside), AT_ONCE):
            broker.enqueue(inside[start : start + AT_ONCE])
        call = partial(broker.wake_up, {message.queue for message in inside})
        after_commit(alias, call)
    if outside:
        rows = [as_row(settings.alias, message) for message in outside]
        Outgoing.objects.using(alias).bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)
        after_commit(alias, partial(bring, settings, [message.job_id for message in outside]))


def bring(settings: Settings, job_ids: Sequence[UUID]) -> None:
    """Bring these from the outbox to the broker, as far as nobody else does."""
    broker, outgoing = broker_for(settings), Outgoing.objects.using(settings.database)

    def relay(rows: Sequence[Outgoing], until: float) -> None:
        broker.relay([as_message(row) for row in rows], until=until)

    for start in range(0, len(job_ids), AT_ONCE):
        lock = partial(outgoing.lock_these, job_ids[start : start + AT_ONCE])
        try:
            rows = carry(broker, settings.database, lock, relay)
        except BrokerError as error:
            tell("relay_put_off", error=error)
            return
        broker.wake_up({row.queue for row in rows}, inside=False)
