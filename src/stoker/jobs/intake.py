"""Store new jobs. A call with a unique key becomes a job, or it is a duplicate. For a duplicate,
the existing job stays as it is or takes over the new arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import connections

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.dead_letters.entries import note_successors
from stoker.exceptions import DuplicateJob
from stoker.guards.keys import UniqueClaim
from stoker.guards.sequences import wait_for
from stoker.guards.unique import CHANGES, Decision, Fate, WantedKeys
from stoker.models import Job
from stoker.models.job import Message
from stoker.models.need import NewNeed
from stoker.store import waiting as waiting_jobs
from stoker.store.statements import deciding
from stoker.store.written import MICROSECONDS, moment

from .package import Sealer, sealer_for
from .results import Commitment, Result, fetch_many, result_of
from .sealing import Newcomer
from .states import JobState, Progress


class _Group:
    """The calls with one unique key. Later calls are duplicates of the first."""

    def __init__(self, claim: UniqueClaim, first: Newcomer) -> None:
        self.claim = claim
        self.members = [first]
        self.decision: Decision
        self.job = first
        """The call that decides about the job's values, unless an existing job is kept."""

    @property
    def fate(self) -> Fate:
        return self.decision.fate

    @property
    def is_refused(self) -> bool:
        is_duplicate = self.fate is not Fate.ENQUEUED or len(self.members) > 1
        return is_duplicate and self.claim.on_conflict == "raise"

    @property
    def waits_untried(self) -> JobState | None:
        """State of the existing job if it waits and was never attempted, so that no query is needed
        to show it; else None."""
        seen = self.decision.seen
        if seen is None or seen.waits is None or seen.attempts > 0:
            return None
        return JobState(seen.waits.upper())

    def shape(self, sealer: Sealer, now_us: int) -> Message:
        """Return the message of the one job for this group of calls."""
        speaker = self.members[-1 if self.claim.on_conflict in CHANGES else 0]
        run_after = speaker.message.run_after
        if self.claim.on_conflict == "postpone":
            due_us = now_us + self.claim.delay_us
            if self.claim.longest_wait_us is not None:
                due_us = min(due_us, self.decision.taken_us + self.claim.longest_wait_us)
            run_after = max(run_after or 0.0, due_us / MICROSECONDS)
        self.job = _again(sealer, speaker, self.decision.job_id, run_after)
        return self.job.message


def _again(sealer: Sealer, call: Newcomer, job_id: UUID, run_after: float | None) -> Newcomer:
    """Return the same call with another id or start time."""
    package, message = call.package, call.message
    if (message.job_id, message.run_after) == (job_id, run_after):
        return call
    data = message.package
    if package.job_id != job_id:
        package = replace(package, job_id=job_id)
        data = sealer.seal(package)
    state = JobState.READY if run_after is None else JobState.DEFERRED
    return replace(
        call,
        package=package,
        message=replace(message, job_id=job_id, package=data, run_after=run_after, is_fresh=False),
        result=call.result._with(id=str(job_id), _progress=Progress(None, state)),
    )


class Newcomers:
    """Calls of one task that are stored together.

    Args:
        commitment: tells whether the transaction that stores the calls was committed.
        batch: the calls in order.
        is_late: whether later calls may have been stored before these. Their jobs stay as they are.
    """

    def __init__(
        self,
        settings: Settings,
        commitment: Commitment,
        batch: Sequence[Newcomer],
        *,
        is_late: bool = False,
    ) -> None:
        self._settings = settings
        self._commitment = commitment
        self._sealer = sealer_for(settings)
        self._batch = batch
        self._is_late = is_late
        self._alias = settings.database
        self._groups: dict[UUID, _Group] = {}
        for newcomer in batch:
            if newcomer.claim is None:
                continue
            group = self._groups.get(newcomer.claim.key_id)
            if group is None:
                self._groups[newcomer.claim.key_id] = _Group(newcomer.claim, newcomer)
            else:
                group.members.append(newcomer)

    def store(self) -> tuple[list[Result[Any]], set[UUID]]:
        """Store the calls that become jobs, in the open transaction or in one of its own.

        Returns:
            The results in order, and the guard keys to check after the transaction has ended.

        Raises:
            DuplicateJob: with ``on_conflict="raise"``. For a single call, nothing was written.
        """
        keys = self._keys()
        keys.look()
        if self._is_stored_at_once(keys):
            return self._results(), set()
        with self._transaction(keys):
            if not keys.is_decided:
                keys.decide()
            for key_id, decision in keys.decided.items():
                self._groups[key_id].decision = decision
            if self._is_late:
                self._keep_newer()
            refused = next((group for group in self._groups.values() if group.is_refused), None)
            if refused is None:
                neglected = self._write(keys.now_us)
                return self._results(), neglected
            # the duplicate is among these calls, so none is enqueued
            key = refused.claim.name.removeprefix("unique ")
            if refused.fate is Fate.ENQUEUED:
                raise DuplicateJob(
                    f"More than one of these calls has the unique key {key!r}: none was enqueued."
                )
            (result,) = self._results_of([refused]).values()
        task = result.task.module_path
        raise DuplicateJob(
            f"The job {result.id} of {task} has the unique key {key!r} already.", result
        )

    def _keys(self) -> WantedKeys:
        wanted = {
            key_id: (group.claim, group.members[0].message.job_id)
            for key_id, group in self._groups.items()
        }
        connection = connections[self._alias]
        is_in_transaction = connection.in_atomic_block or not connection.get_autocommit()
        return WantedKeys(self._alias, wanted, holds=is_in_transaction)

    def _is_stored_at_once(self, keys: WantedKeys) -> bool:
        """Store a single job whose key is free with one statement, if the database supports that.
        Return whether the job was stored."""
        taking = keys.only_taking()
        if taking is None or len(self._batch) != 1:
            return False
        (group,) = self._groups.values()
        group.decision = Decision(Fate.ENQUEUED, taking[0].job_id, keys.now_us)
        job = group.shape(self._sealer, keys.now_us)
        return keys.take_and_add(job, group.members[0].package.options.identity)

    def _transaction(self, keys: WantedKeys) -> AbstractContextManager[Any]:
        """Return a transaction, or a no-op context manager if nothing will be written."""
        if keys.is_decided and len(self._groups) == len(self._batch):
            return nullcontext()
        return deciding(self._alias)

    def _keep_newer(self) -> None:
        """Keep the jobs whose arguments come from later calls."""
        changed = {
            group.decision.job_id: group
            for group in self._groups.values()
            if group.fate is Fate.CHANGED
        }
        jobs = Job.objects.using(self._alias).filter(pk__in=changed)
        for job_id, enqueued_at in jobs.values_list("pk", "enqueued_at"):
            group = changed[job_id]
            if moment(group.members[-1].message.enqueued_at) < enqueued_at:
                group.decision = replace(group.decision, fate=Fate.KEPT)

    def _write(self, now_us: int) -> set[UUID]:
        messages = [newcomer.message for newcomer in self._batch if newcomer.claim is None]
        changed, kept = [], []
        running: dict[UUID, NewNeed] = {}
        for group in self._groups.values():
            held = group.decision.held
            if group.fate is Fate.KEPT:
                kept += [] if held is None else [held]
                continue
            message = group.shape(self._sealer, now_us)
            if group.decision.follows is not None:
                running[group.decision.follows] = message.needs[0]  # see ``needs_of``
            if held is None:
                messages.append(message)
            else:
                changed.append((held, message))
        if running:
            wait_for(self._alias, running)
        broker_for(self._settings).enqueue(messages)
        note_successors(self._alias, self._enqueued())
        return waiting_jobs.replace(self._alias, changed) | waiting_jobs.lines_of(self._alias, kept)

    def _enqueued(self) -> dict[str, UUID]:
        """Return logical job -> id of its new job."""
        return {
            group.members[0].package.options.identity: group.decision.job_id
            for group in self._groups.values()
            if group.fate is Fate.ENQUEUED
        }

    def _results(self) -> list[Result[Any]]:
        of_jobs = self._results_of(self._groups.values())
        results = []
        for newcomer in self._batch:
            result = newcomer.result
            if newcomer.claim is not None:
                group = self._groups[newcomer.claim.key_id]
                is_new = group.fate is Fate.ENQUEUED and newcomer is group.members[0]
                result = of_jobs[group.claim.key_id]
                result = result if is_new else result._with(was_duplicate=True)
            results.append(result)
        return results

    def _results_of(self, groups: Collection[_Group]) -> dict[UUID, Result[Any]]:
        """Return key -> the result of its job."""
        known = {
            group.decision.job_id: group.job.result
            for group in groups
            if group.fate is Fate.ENQUEUED or (group.fate is Fate.CHANGED and group.waits_untried)
        }
        known |= self._looked_up([one for one in groups if one.decision.job_id not in known])
        return {group.claim.key_id: self._told(group, known) for group in groups}

    def _looked_up(self, groups: Iterable[_Group]) -> dict[UUID, Result[Any]]:
        """Return job id -> result of the existing jobs."""
        untried = {group.decision.job_id: group.waits_untried for group in groups}
        tried = [job_id for job_id, state in untried.items() if state is None]
        jobs = Job.objects.using(self._alias).in_bulk(list(untried.keys() - set(tried)))
        found = {UUID(result.id): result for result in fetch_many(self._settings, tried)}
        for job_id, job in jobs.items():
            state = untried[job_id]
            assert state is not None
            found[job_id] = result_of(self._settings, job_id, Progress(job, state))
        return found

    def _told(self, group: _Group, known: Mapping[UUID, Result[Any]]) -> Result[Any]:
        job_id = group.decision.job_id
        if group.fate is Fate.ENQUEUED:
            return known[job_id]
        result = known.get(job_id) or group.members[0].result._with(id=str(job_id))
        commitment = None if group.decision.held is None else self._commitment
        return result._with(was_duplicate=True, _commitment=commitment)
