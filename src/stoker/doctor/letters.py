"""Dead letters and what else is kept of jobs: each entry says what is so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef

from stoker.models import Attempt, DeadLetter, Job, Requeue, UniqueKey
from stoker.models.clock import database_now_us
from stoker.models.dead_letter_search import told_by_dead_letters
from stoker.models.statements import with_keys

from .look import Kind, Look

CONTRADICTED = Kind(
    "dead_letters_of_no_failure",
    "These dead letters are open, but the jobs that they tell of have not failed.",
)
UNRESOLVED = Kind(
    "unresolved_dead_letters",
    "These dead letters were requeued, and the new job has succeeded: they should be resolved.",
    "they are resolved",
)
DESERTED = Kind(
    "deserted_dead_letters",
    "These dead letters were requeued, and the new job is gone or was cancelled: nobody carries "
    "them on.",
    "they are open again",
    is_fault=False,
)
DANGLING = Kind(
    "requeues_without_dead_letter",
    "These requeues (the ids are those of the new jobs) tell of dead letters that are gone.",
    "they are deleted",
    is_fault=False,
)
ORPHANED = Kind(
    "attempts_without_job",
    "These attempts are of jobs that are gone, and no dead letter shows them.",
    "they are deleted",
    is_fault=False,
)
LEFT_KEYS = Kind(
    "unique_keys_without_job",
    "The jobs that took these unique keys are gone. They count as free.",
    "they are deleted",
    is_fault=False,
)
BY = "stoker doctor"


class Letters(Look):
    """An open one is of a job that failed, a requeued one is carried on."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        for page in self.scene.pages(DeadLetter, "state", "job_id", "successor_id"):
            open_ones = {row[0]: row[2] for row in page if row[1] == DeadLetter.State.OPEN}
            carried = {row[0]: row[3] for row in page if row[1] == DeadLetter.State.REQUEUED}
            status = self._status([*open_ones.values(), *filter(None, carried.values())])
            wrong = {
                pk: job_id
                for pk, job_id in open_ones.items()
                if status.get(job_id, Job.Status.FAILED) != Job.Status.FAILED
            }
            yield CONTRADICTED, self._still("job_id", wrong)
            over = {pk: one for pk, one in carried.items() if status.get(one, "gone") is not None}
            done = {pk: one for pk, one in over.items() if status.get(one) == Job.Status.SUCCESSFUL}
            yield UNRESOLVED, self._still("successor_id", done)
            left = {pk: one for pk, one in over.items() if pk not in done}
            yield DESERTED, self._still("successor_id", left)

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        letters = DeadLetter.objects.using(self.alias)
        seen = list(with_keys(letters.filter(state=DeadLetter.State.REQUEUED), ids))
        if kind is DESERTED:
            return sum(letters.reopen(one) for one in seen)
        state, why = DeadLetter.State.RESOLVED, "the job that it was requeued as has succeeded"
        return sum(letters.close(one, state, BY, why) for one in seen)

    def _status(self, job_ids: Sequence[UUID]) -> dict[UUID, str | None]:
        jobs = with_keys(Job.objects.using(self.alias), job_ids)
        return dict(jobs.values_list("pk", "status"))

    def _still(self, name: str, seen: dict[UUID, Any]) -> list[UUID]:
        """Unchanged since, though the job had ended by then."""
        if not seen:
            return []
        rows = with_keys(DeadLetter.objects.using(self.alias).unclosed(), seen.keys())
        return sorted(pk for pk, job_id in rows.values_list("pk", name) if job_id == seen[pk])


class Leftovers(Look):
    """Rows that stand for nothing any more do no harm; they only grow in number."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        for page in self.scene.pages(Requeue, "identity"):
            yield DANGLING, self._dangling([row[0] for row in page])
        for page in self.scene.pages(Attempt, "job_id"):
            jobs = self._gone({row[1] for row in page})
            yield ORPHANED, [pk for pk, job_id in page if job_id in jobs]
        for page in self.scene.pages(UniqueKey, "job_id", "until_us"):
            now_us = database_now_us(self.alias)
            jobs = self._gone({row[1] for row in page if row[2] <= now_us})
            yield LEFT_KEYS, [pk for pk, job_id, _ in page if job_id in jobs]

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        if kind is DANGLING:
            rows: Any = Requeue.objects.using(self.alias)
            return int(rows.filter(pk__in=self._dangling(ids)).delete()[0])
        if kind is LEFT_KEYS:
            return UniqueKey.objects.using(self.alias).forget_these(ids)
        job = Job.objects.using(self.alias).filter(pk=OuterRef("job_id"))
        attempts = Attempt.objects.using(self.alias).filter(~Exists(job), pk__in=ids)
        return int(attempts.delete()[0])

    def _dangling(self, job_ids: Sequence[UUID]) -> list[UUID]:
        letter = DeadLetter.objects.using(self.alias).filter(identity=OuterRef("identity"))
        rows = with_keys(Requeue.objects.using(self.alias), job_ids)
        return sorted(rows.filter(~Exists(letter)).values_list("pk", flat=True))

    def _gone(self, job_ids: set[UUID]) -> set[UUID]:
        """Those that are gone, and of which no dead letter tells."""
        if not job_ids:
            return set()
        jobs = with_keys(Job.objects.using(self.alias), job_ids)
        gone = job_ids - set(jobs.values_list("pk", flat=True))
        return gone - told_by_dead_letters(self.alias, gone) if gone else gone
