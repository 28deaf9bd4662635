"""Deliver: jobs that follow from others are enqueued in the transaction that recorded those."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from django.db import transaction

from stoker.brokers import broker_for
from stoker.brokers.base import Broker, Message
from stoker.conf import Settings
from stoker.models import Step
from stoker.models.statements import update_by_key

AT_ONCE = 1000


def deliver(settings: Settings, messages: Sequence[Message]) -> None:
    """Enqueue these, in the open transaction.

    A broker outside the store gets them after the commit. Steps keep what is to be enqueued until
    it has it, and upkeep looks for those that nobody could bring to it.
    """
    if not messages:
        return
    broker = broker_for(settings)
    if broker.capabilities.transactional:
        for start in range(0, len(messages), AT_ONCE):
            broker.enqueue(messages[start : start + AT_ONCE])
        queues = {message.queue for message in messages}
        call = partial(broker.wake_up, queues)
    else:
        call = partial(bring, settings, broker, messages)
    transaction.on_commit(call, using=settings.database, robust=True)


def bring(settings: Settings, broker: Broker, messages: Sequence[Message]) -> None:
    """Enqueue what has been committed with a broker outside the store."""
    steps = Step.objects.using(settings.database)
    for start in range(0, len(messages), AT_ONCE):
        batch = messages[start : start + AT_ONCE]
        broker.enqueue(batch)
        brought = steps.of_jobs([message.job_id for message in batch]).filter(
            state=Step.State.ENQUEUED
        )
        update_by_key(steps, list(brought.values_list("pk", flat=True)), sealed=None)
    broker.wake_up({message.queue for message in messages})
