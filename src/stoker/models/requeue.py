"""Jobs that carry on a dead letter: who sent it again, when and why."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import connections, models
from django.db.models.functions import Now

from stoker.store.prepared import list_literal
from stoker.store.statements import (
    fetch,
    hexes,
    moves_a_list_in_json,
    moves_rows_in_one_statement,
    with_keys,
)


class RequeueQuerySet(models.QuerySet["Requeue"]):
    def identities(self, job_ids: Collection[UUID]) -> dict[UUID, str]:
        """Job id -> the logical job that it carries on, for those that do."""
        if not job_ids:
            return {}
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            return dict(fetch(connection, "requeue_identities", {"job_ids": list(job_ids)}))
        if moves_a_list_in_json(connection):
            found = fetch(connection, "listed_identities", {"job_ids": hexes(job_ids)})
            return {UUID(key): identity for key, identity in found}
        return dict(with_keys(self, job_ids).values_list("pk", "identity"))

    def have_any(self, job_ids: Sequence[str]) -> bool:
        """Whether one of these jobs carries on something; by their 32 digits."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            wanted = {"job_ids": list_literal(job_ids)}
            return bool(fetch(connection, "requeue_identities", wanted))
        return bool(fetch(connection, "listed_identities", {"job_ids": json.dumps(job_ids)}))


class Requeue(models.Model):
    """One job that was made of a dead letter. Kept as long as the dead letter."""

    class By(models.TextChoices):
        PERSON = "person"
        POLICY = "policy"
        """``DeadLetters(requeue_after=...)``."""
        SUCCESSOR = "successor"
        """Nobody sent it again: a newer job of the same unique key was enqueued."""

    job_id = models.UUIDField(primary_key=True)
    identity = models.CharField(max_length=255, db_index=True)
    """The logical job, as in DeadLetter."""
    from_job_id = models.UUIDField(db_index=True)
    """The job that had failed."""
    kind = models.CharField(max_length=9, choices=By.choices, default=By.PERSON)
    by = models.CharField(max_length=150, default="")
    because = models.CharField(max_length=255, default="")
    requeued_at = models.DateTimeField(db_default=Now())

    objects = RequeueQuerySet.as_manager()

    class Meta:
        verbose_name = "requeue"

    def __str__(self) -> str:
        return f"{self.from_job_id} again as {self.job_id}"
