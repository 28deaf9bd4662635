"""Advance workflows when their jobs end: start, stop and finish steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from stoker.conf import Settings
from stoker.models import Cancellation, Step, Workflow
from stoker.models.job import Job
from stoker.models.step import ENDED, GROUPS, OPEN, UNDER_WAY, StepEnd, StepState
from stoker.store.statements import update_by_key

from .deliver import Ended, run_id_of
from .start import Starter

State = Step.State

REASON = "another step of its group has failed"


class Stopper:
    """Ends steps of workflows that the caller has locked, in one transaction."""

    def __init__(self, settings: Settings) -> None:
        self._alias = settings.database
        self._steps = Step.objects.using(self._alias)
        self._job_ids: list[UUID] = []

    def stop_below(self, parent_id: UUID, cause: UUID | None) -> bool:
        """Stop the running steps below a parent, and collect their jobs for ``ask``.

        If some of them have undos, all containers below wait for their running steps, and are
        undone then.

        Returns:
            Whether the parent must wait for that, too.
        """
        level, stopped, must_undo = [parent_id], list[UUID](), False
        while level:
            below = self._steps.filter(parent_id__in=level).exclude(role=Step.Role.ERROR)
            enqueued = below.filter(state=State.ENQUEUED).exclude(job_id=None)
            self._job_ids += filter(None, enqueued.values_list("job_id", flat=True))
            holding = below.filter(state__in=(State.STARTED, State.UNDOING))
            rows = list(holding.values_list("pk", "state", "has_undo"))
            level = [pk for pk, state, _ in rows if state == State.STARTED]
            must_undo |= any(has_undo or state == State.UNDOING for _, state, has_undo in rows)
            stopped += level
        state = State.UNDOING if must_undo else State.CANCELLED
        update_by_key(self._steps, stopped, state=state, cause=cause)
        return must_undo

    def ask(self) -> list[UUID]:
        """Request the cancellation of the collected jobs, and return their ids.

        Clusters stop the running ones. The caller withdraws the waiting ones after it has released
        its locks.
        """
        job_ids, self._job_ids = self._job_ids, []
        Cancellation.objects.using(self._alias).ask_all(job_ids, REASON)
        return job_ids


Role = Step.Role

STATES = {
    Job.Status.SUCCESSFUL: State.SUCCESSFUL,
    Job.Status.FAILED: State.FAILED,
    Job.Status.CANCELLED: State.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Over:
    """A step that has ended."""

    step: Step
    state: str
    cause: UUID | None = None
    """The job that caused the failure."""

    @property
    def lets_go_on(self) -> bool:
        return self.state == State.SUCCESSFUL or self.step.is_optional


class Advance:
    """Advances workflows after a batch of jobs has ended. Locks each workflow once, in order of
    ids."""

    def __init__(self, settings: Settings) -> None:
        self._alias = settings.database
        self._steps = Step.objects.using(self._alias)
        self._workflows = Workflow.objects.using(self._alias)
        self._starter = Starter(settings)
        self._stopper = Stopper(settings)
        self._late: list[Over] = []
        """Empty groups that a job has added."""
        self._stopped: set[UUID] = set()
        """Jobs that have ended because a group of theirs had failed."""

    def record(self, ended: Mapping[UUID, Ended]) -> list[UUID]:
        """Record that these jobs have ended. Return the ids of jobs that must be cancelled because
        of that."""
        ours = self._steps.of_jobs(ended)
        states = self._workflows.lock(set(ours.values_list("workflow_id", flat=True)))
        if not states:
            return []
        steps = ours.filter(state=State.ENQUEUED).defer("sealed", "value")
        cancelled = {pk for pk, state in states.items() if state == Workflow.State.CANCELLED}
        wave = self._record_jobs(steps, ended, cancelled)
        return self.go_on([one for one in wave if one.step.workflow_id not in cancelled])

    def go_on(self, wave: Sequence[Over]) -> list[UUID]:
        """Continue the workflows after steps whose ends are stored. The workflows are locked.
        Return the ids of jobs to cancel."""
        wave = [*wave, *self._late]
        self._late = []
        while wave:
            wave = self._climb(wave)
            # Now, because their parents may end in this call, too, and are not checked again.
            wave += self._call_back(wave)
        self._starter.deliver()
        return self._stopper.ask()

    def begin(self, steps: Sequence[Step]) -> list[UUID]:
        """Start the given steps. Return the ids of jobs to cancel."""
        return self.go_on([Over(step, State.SUCCESSFUL) for step in self._starter.start(steps)])

    def resume(self, containers: Sequence[Step]) -> list[Step]:
        """Continue chains and groups that were stopped, none of whose steps is under way. Return
        the members that start in these groups."""
        update_by_key(self._steps, [one.pk for one in containers], state=State.STARTED, cause=None)
        groups = [one for one in containers if one.kind in GROUPS]
        chains = {one.pk: one for one in containers if one.kind not in GROUPS}
        rows = self._steps.below(chains).defer("sealed", "value").order_by("position")
        last = {one.parent_id: one for one in rows.filter(state__in=ENDED)}
        begun = [(chain, last[pk]) for pk, chain in chains.items() if pk in last]
        waiting = self._steps.below(chains.keys() - last.keys()).filter(state=State.PENDING)
        first = {one.parent_id: one for one in waiting.order_by("-position")}
        wave = self._complete(groups)
        ended = {over.step.pk for over in wave}
        members = self._starter.next_members(
            [group for group in groups if group.has_more and group.pk not in ended]
        )
        wave += self._in_chains([(chain, Over(one, one.state)) for chain, one in begun])
        wave += self._start([*first.values(), *members])
        self.go_on(wave)
        return members

    # -- the jobs ---------------------------------------------------------------------------------

    def _record_jobs(
        self, steps: Iterable[Step], ended: Mapping[UUID, Ended], cancelled: Collection[UUID]
    ) -> list[Over]:
        wave, ends = [], []
        for step in steps:
            assert step.job_id is not None
            one = ended[step.job_id]
            state = STATES[Job.Status(one.status)]
            if state == State.CANCELLED and one.message == REASON:
                self._stopped.add(step.job_id)
            value = one.value if step.is_wanted and one.has_succeeded else None
            cause = None if one.has_succeeded else step.job_id
            if step.has_added and one.has_succeeded:
                state = self._adopt(step, one, step.workflow_id in cancelled)
            ends.append(StepEnd(step.pk, state.value, value, cause))
            if state != State.STARTED:
                wave.append(Over(step, state, cause))
        self._steps.end(ends)
        return wave

    def _adopt(self, step: Step, ended: Ended, is_cancelled: bool) -> StepState:
        """Add to the workflow the steps that the job created in its successful run. Return the new
        state of the job's step.

        Steps from other runs never start, also if such a run did not count as an attempt. If the
        workflow or a group above was stopped meanwhile, the added steps wait for a retry.
        """
        is_part = step.role == Role.STEP and step.parent_id is not None
        above = self._steps.filter(pk__in=[step.parent_id]).first() if is_part else None
        if above is None:
            may_start, stays = not is_cancelled, is_cancelled
        else:
            may_start = above.state == State.STARTED
            will_be_undone = step.has_undo and above.state == State.UNDOING
            stays = will_be_undone or above.state == State.SUCCESSFUL
        if stays:
            return State.SUCCESSFUL
        added = self._steps.below([step.pk]).filter(state=State.HELD)
        if ended.lease is not None:
            added = added.filter(cause=run_id_of(ended.lease))
        else:
            added = added.filter(added_in__in=(ended.attempt, -ended.attempt))
        rows = list(added.order_by("position").values_list("pk", "has_undo"))
        ids = [pk for pk, _ in rows]
        if not ids:
            return State.SUCCESSFUL
        update_by_key(self._steps, ids, state=State.PENDING, cause=None)
        if any(has_undo for _, has_undo in rows):
            update_by_key(self._steps, [step.pk], has_undo=True)
        self._workflows.grow(step.workflow_id, self._steps.count_tasks(ids))
        if not may_start:
            return State.CANCELLED
        self._late += self._start([self._steps.get(pk=ids[0])])
        return State.STARTED

    # -- groups and chains ------------------------------------------------------------------------

    def _climb(self, wave: Sequence[Over]) -> list[Over]:
        """Update the parents of ended steps. Return the parents that ended."""
        held: dict[UUID, list[Over]] = {}
        above: list[Over] = []
        for one in wave:
            if one.step.role == Role.UNDO:
                above += self._go_on_undoing(one)
            elif one.step.role == Role.STEP and one.step.parent_id is None:
                self._workflows.end(one.step.workflow_id, one.state)
            elif one.step.role == Role.STEP:
                assert one.step.parent_id is not None
                held.setdefault(one.step.parent_id, []).append(one)
        if not held:
            return above
        parents = self._steps.filter(pk__in=held).defer("sealed", "value")
        chains: list[tuple[Step, list[Over]]] = []
        groups: list[tuple[Step, list[Over]]] = []
        stopped: list[Step] = []
        for parent in parents.filter(state__in=(State.STARTED, State.UNDOING)):
            if parent.state == State.UNDOING:
                stopped.append(parent)
                continue
            (groups if parent.kind in GROUPS else chains).append((parent, held[parent.pk]))
            above += self._call_back(held[parent.pk])
        # An optional step that was requeued may end together with a later step.
        above += self._in_chains(
            [(chain, max(overs, key=lambda one: one.step.position)) for chain, overs in chains]
        )
        above += self._in_groups(groups)
        above += self._in_stopped(stopped)
        return above

    def _in_chains(self, ended: Sequence[tuple[Step, Over]]) -> list[Over]:
        """Start the next step of each chain, or end the chain."""
        above = [
            failed
            for chain, over in ended
            if not over.lets_go_on
            for failed in self._fail(chain, over.cause)
        ]
        going_on = {chain.pk: (chain, over) for chain, over in ended if over.lets_go_on}
        positions = {over.step.position + 1 for _, over in going_on.values()}
        following = self._steps.below(going_on).filter(position__in=positions)
        next_steps = {}
        for step in following.exclude(state=State.HELD) if going_on else ():
            assert step.parent_id is not None
            if going_on[step.parent_id][1].step.position + 1 == step.position:
                next_steps[step.parent_id] = step
        done = [chain for pk, (chain, _) in going_on.items() if pk not in next_steps]
        self._steps.become([chain.pk for chain in done], State.SUCCESSFUL)
        above += [Over(chain, State.SUCCESSFUL) for chain in done]
        # An optional step may have been requeued: the steps after it have already run then.
        return above + self._start(
            [step for step in next_steps.values() if step.state == State.PENDING]
        )

    def _in_groups(self, ended: Sequence[tuple[Step, list[Over]]]) -> list[Over]:
        stopping = self._new_failures([one for one in ended if one[0].fails_fast])
        going_on = [group for group, _ in ended if group.pk not in stopping]
        turns = self._starter.next_members([group for group in going_on if group.has_more])
        with_turns = {one.parent_id for one in turns}
        above = self._start(turns)
        above += self._complete([group for group in going_on if group.pk not in with_turns])
        for group, _ in ended:  # last, because the other groups may be below
            if group.pk in stopping:
                above += self._stop(group, stopping[group.pk])
        return above

    def _new_failures(self, ended: Sequence[tuple[Step, list[Over]]]) -> dict[UUID, UUID | None]:
        """Return group -> cause, for the groups with a member that was not stopped, but failed.

        A group may be retried before all the members that it stopped have ended. When they end,
        they do not stop it again.
        """
        causes = {
            group.pk: [one.cause for one in overs if not one.lets_go_on] for group, overs in ended
        }
        stopped = self._stopped
        unknown = {one for some in causes.values() for one in some if one is not None} - stopped
        if unknown:
            jobs = Job.objects.using(self._alias).filter(pk__in=unknown, reason=REASON)
            cancelled = jobs.filter(status=Job.Status.CANCELLED)
            stopped = stopped.union(cancelled.values_list("pk", flat=True))
        new = {pk: [one for one in some if one not in stopped] for pk, some in causes.items()}
        return {pk: some[0] for pk, some in new.items() if some}

    def _stop(self, group: Step, cause: UUID | None) -> list[Over]:
        """End a group at its first failure, or after the undos of its members."""
        if not self._stopper.stop_below(group.pk, cause):
            return self._fail(group, cause)
        self._steps.filter(pk=group.pk).update(state=State.UNDOING, cause=cause)
        return []

    def _in_stopped(self, stopped: Sequence[Step]) -> list[Over]:
        """Undo the steps of containers that were stopped, after their running steps have ended."""
        ids = [step.pk for step in stopped]
        if not ids:
            return []
        under_way = self._steps.below(ids).filter(state__in=UNDER_WAY)
        busy = set(under_way.values_list("parent_id", flat=True).distinct())
        busy |= self._steps.undone_among(ids)  # their undos go on by themselves
        return [
            over for step in stopped if step.pk not in busy for over in self._fail(step, step.cause)
        ]

    def _complete(self, groups: Sequence[Step]) -> list[Over]:
        """Finish the groups whose members have all ended. Return them and their parents that
        ended."""
        members = self._steps.below([group.pk for group in groups])
        open_ones = members.filter(state__in=OPEN).values_list("parent_id", flat=True)
        busy = set(open_ones.distinct()) if groups else set()
        complete = {group.pk: group for group in groups if group.pk not in busy}
        if not complete:
            return []
        failed = members.filter(
            parent_id__in=complete,
            state__in=(State.FAILED, State.CANCELLED),
            is_optional=False,
        )
        causes: dict[UUID, UUID | None] = {}
        for parent_id, cause, job_id in failed.order_by("-position").values_list(
            "parent_id", "cause", "job_id"
        ):
            assert parent_id is not None
            causes[parent_id] = cause or job_id
        good = [group for pk, group in complete.items() if pk not in causes]
        self._steps.become([group.pk for group in good], State.SUCCESSFUL)
        above = [Over(group, State.SUCCESSFUL) for group in good]
        for pk, cause in causes.items():
            above += self._fail(complete[pk], cause)
        return above

    def _start(self, steps: Iterable[Step]) -> list[Over]:
        """Start the given steps. Return the empty groups, which end at once."""
        return [Over(one, State.SUCCESSFUL) for one in self._starter.start(list(steps))]

    # -- failure ----------------------------------------------------------------------------------

    def _fail(self, step: Step, cause: UUID | None) -> list[Over]:
        """Mark a chain or group as failed. If it has steps to undo, start the first undo
        instead."""
        may_undo = step.has_undo and step.kind not in GROUPS  # no member of a group has an undo
        undo = self._next_undo(step, None) if may_undo else None
        state = State.FAILED if undo is None else State.UNDOING
        self._steps.filter(pk=step.pk).update(state=state, cause=cause)
        if undo is None:
            return [Over(step, state, cause)]
        return self._start([undo])

    def _go_on_undoing(self, over: Over) -> list[Over]:
        """Start the next undo of a chain after the previous one has ended, whether or not it
        succeeded."""
        undone = self._steps.in_bulk([over.step.parent_id])[over.step.parent_id]
        chain = self._steps.filter(pk__in=[undone.parent_id], state=State.UNDOING).first()
        if chain is None or self._has_undo_under_way(chain):
            return []
        undo = self._next_undo(chain, undone.position)
        if undo is not None:
            return self._start([undo])
        self._steps.become([chain.pk], State.FAILED)
        return [Over(chain, State.FAILED, chain.cause)]

    def _has_undo_under_way(self, chain: Step) -> bool:
        """Return whether an undo of a chain runs. After an undo was requeued, there may be two: the
        one that ends last continues the chain."""
        members = self._steps.below([chain.pk]).filter(has_undo=True)
        undos = self._steps.filter(parent_id__in=members.values("pk"), role=Role.UNDO)
        return undos.filter(state__in=UNDER_WAY).exists()

    def _next_undo(self, chain: Step, before: int | None) -> Step | None:
        done = self._steps.below([chain.pk]).filter(has_undo=True, state=State.SUCCESSFUL)
        if before is not None:
            done = done.filter(position__lt=before)
        positions = dict(done.values_list("pk", "position"))
        undos = self._steps.filter(
            parent_id__in=done.values("pk"), role=Role.UNDO, state=State.PENDING
        )
        below = [(positions[pk], pk) for pk in undos.values_list("parent_id", flat=True) if pk]
        return undos.get(parent_id=max(below)[1]) if below else None

    def _call_back(self, overs: Sequence[Over]) -> list[Over]:
        """Start ``on_error`` steps of failed or cancelled steps. The workflow does not wait.

        Return the empty groups, which end at once.
        """
        causes = {
            one.step.pk: one.cause
            for one in overs
            if one.step.has_error and one.state in (State.FAILED, State.CANCELLED)
        }
        if not causes:
            return []
        called = self._steps.filter(parent_id__in=causes, role=Role.ERROR)
        steps = list(called.filter(state=State.PENDING))
        for step in steps:
            assert step.parent_id is not None
            step.cause = causes[step.parent_id]
        # A retry may give the failed step a new job before this one runs.
        self._steps.bulk_update(steps, ["cause"])
        return self._start(steps)
