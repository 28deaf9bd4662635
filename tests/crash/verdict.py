"""Checks the invariants with the ledger and the answers of the public API.

``Facts`` gathers the ledger's lines by token, job and execution; ``judge`` compares them with the
ends that the API reports, and yields one ``Finding`` for each broken promise.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.crash.ledger import Line

LIMIT = 2
RATE_PER_SECOND = 10
CLOCK_SECONDS = 0.005
"""The tolerance for times: the clock of leases has microseconds, those of tests are coarser."""
DEATH_SECONDS = 5.0
"""How long a worker may live after its sentinel was killed."""
RETURN_SECONDS = 0.2
"""How long a task may take from its last line in the ledger until Stoker knows of its end."""


@dataclass(frozen=True)
class Finding:
    """A broken promise."""

    kind: str
    """lost, doubled, early, overlapping, miscounted, ticks or stalled."""
    sentence: str
    subject: str = ""
    """The job, token or key concerned."""


@dataclass
class Execution:
    """One execution of one attempt, as the task wrote it."""

    nonce: str
    job: str
    token: str
    attempt: int
    pid: int
    began: float
    wall: float
    facts: Line
    last_seen: float = 0.0
    ended: float | None = None
    how: str = ""

    @property
    def until(self) -> float:
        """Return the time until which it is known to have run."""
        return self.last_seen if self.ended is None else self.ended


@dataclass
class Enqueued:
    """One thing that a user enqueued, or tried to."""

    token: str
    kind: str
    facts: Line
    job: str = ""
    workflow: str = ""
    is_duplicate: bool = False
    committing: float | None = None
    outcome: str = ""
    """committed, rolled_back, unsure, or empty: the user was killed."""
    cancelled: float | None = None
    """When the API reported it as CANCELLED."""

    @property
    def is_promised(self) -> bool:
        return self.outcome == "committed" and not self.is_duplicate

    @property
    def is_refused(self) -> bool:
        """Whether it must never run, because no COMMIT was sent."""
        return self.outcome == "rolled_back" or self.committing is None


@dataclass
class End:
    """What the public API reports about a job in the end."""

    exists: bool
    status: str = ""
    """SUCCESSFUL, FAILED or CANCELLED; with any other status the job has not ended."""
    attempts: int = 0
    value: str | None = None
    explanation: str = ""


@dataclass
class Facts:
    """The ledger, in order."""

    enqueued: dict[str, Enqueued] = field(default_factory=dict)
    executions: dict[str, Execution] = field(default_factory=dict)
    requeues: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    """Token -> the lines of its requeues."""
    seen_ended: dict[str, float] = field(default_factory=dict)
    """Job -> when the API first reported its end."""
    troubles: Counter[str] = field(default_factory=Counter)

    def add(self, lines: Iterable[Line]) -> None:
        """Add more lines."""
        for line in lines:
            handler = getattr(self, f"_{line['event']}", None)
            # Executions of the previous round were judged there.
            is_known = (
                "nonce" not in line
                or line["event"] == "started"
                or line["nonce"] in self.executions
            )
            if handler is not None and is_known:
                handler(line)

    def by_job(self) -> dict[str, list[Execution]]:
        """Return job -> its executions, in the order of their start."""
        found: dict[str, list[Execution]] = defaultdict(list)
        for execution in sorted(self.executions.values(), key=lambda one: one.began):
            found[execution.job].append(execution)
        return found

    def _will(self, line: Line) -> None:
        self.enqueued[line["token"]] = Enqueued(line["token"], line["kind"], line)

    def _made(self, line: Line) -> None:
        one = self.enqueued[line["token"]]
        one.job = line.get("job", "")
        one.workflow = line.get("workflow", "")
        one.is_duplicate = line.get("duplicate", False)

    def _committing(self, line: Line) -> None:
        self.enqueued[line["token"]].committing = line["at"]

    def _committed(self, line: Line) -> None:
        self.enqueued[line["token"]].outcome = "committed"

    def _rolled_back(self, line: Line) -> None:
        self.enqueued[line["token"]].outcome = "rolled_back"

    def _unsure(self, line: Line) -> None:
        self.enqueued[line["token"]].outcome = "unsure"

    def _cancelled(self, line: Line) -> None:
        self.enqueued[line["token"]].cancelled = line["at"]

    def _seen_ended(self, line: Line) -> None:
        self.seen_ended.setdefault(line["job"], line["at"])

    def _requeue(self, line: Line) -> None:
        self.requeues[line["token"]].append(line)

    def _requeued(self, line: Line) -> None:
        if line["fate"] == "requeued":
            token = line["token"]
            self.enqueued[f"{token}, sent again"] = Enqueued(
                token, "requeued", line, job=line["job"], committing=0.0, outcome="committed"
            )

    def _trouble(self, line: Line) -> None:
        self.troubles[line["error"].partition(":")[0]] += 1

    def _started(self, line: Line) -> None:
        self.executions[line["nonce"]] = Execution(
            line["nonce"],
            line["job"],
            line["token"],
            line["attempt"],
            line["pid"],
            line["at"],
            line["wall"],
            line,
            line["at"],
        )

    def _beat(self, line: Line) -> None:
        self.executions[line["nonce"]].last_seen = line["at"]

    def _ended(self, line: Line) -> None:
        self.executions[line["nonce"]].ended = line["at"]
        self.executions[line["nonce"]].how = "ended"

    def _interrupted(self, line: Line) -> None:
        self.executions[line["nonce"]].ended = line["at"]
        self.executions[line["nonce"]].how = "interrupted"

    def _raised(self, line: Line) -> None:
        self.executions[line["nonce"]].ended = line["at"]
        self.executions[line["nonce"]].how = "raised"


class Judge:
    """Checks every promise."""

    def __init__(
        self,
        facts: Facts,
        ends: dict[str, End],
        killed: Mapping[int, float] | None = None,
        stopped: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        self.facts = facts
        self.ends = ends
        self.killed = killed or {}
        """Process id -> when a fault killed it last. Ids are used again in long runs."""
        self.stopped = stopped or {}
        """Process id -> when a fault stopped it."""
        self.by_job = facts.by_job()
        self.phantoms: Counter[str] = Counter()
        """Kind of job -> attempts that were counted but whose start is not in the ledger."""

    def findings(self) -> Iterator[Finding]:
        """Yield every broken promise."""
        for one in self.facts.enqueued.values():
            if one.kind != "workflow" and one.kind != "stopped workflow":
                yield from self._lost(one)
            yield from self._early(one)
        yield from self._doubled()
        yield from self._counted()
        yield from self._overlapping()
        yield from self._sequences()
        yield from self._cancelled_jobs()
        yield from self._ticks()

    # Never lost.

    def _lost(self, one: Enqueued) -> Iterator[Finding]:
        jobs = {one.job} if one.job else set()
        if not jobs:
            jobs = {e.job for e in self.facts.executions.values() if e.token == one.token}
        for job in jobs:
            end = self.ends.get(job)
            if end is None:
                continue
            who = f"{one.kind} {one.token}, job {job}"
            if not end.exists:
                if one.is_promised:
                    yield Finding("lost", f"{who} was committed and is not there.", job)
                continue
            if one.is_refused and not one.is_duplicate:
                yield Finding("early", f"{who} was rolled back and is there: {end}.", job)
            if end.status not in {"SUCCESSFUL", "FAILED", "CANCELLED"}:
                yield Finding("lost", f"{who} has not ended: {end.status}. {end.explanation}", job)
            elif end.status not in EXPECTED_ENDS.get(one.kind, {"SUCCESSFUL"}):
                yield Finding("lost", f"{who} ended as {end.status}: {end.explanation}", job)
            elif end.status == "SUCCESSFUL":
                yield from self._recorded(who, job, end)

    def _recorded(self, who: str, job: str, end: End) -> Iterator[Finding]:
        """Check that the recorded value is that of the last execution, which has ended."""
        executions = self.by_job.get(job, [])
        ended = [one for one in executions if one.nonce == end.value and one.how == "ended"]
        if not ended:
            yield Finding(
                "lost", f"{who} is recorded as successful and no attempt of it ended so.", job
            )
        elif ended[0] is not executions[-1]:
            yield Finding(
                "doubled",
                f"{who} ran again {executions[-1].began - ended[0].until:.2f} s after the attempt "
                f"that is recorded: {_told(executions)}.",
                job,
            )

    # Never early.

    def _early(self, one: Enqueued) -> Iterator[Finding]:
        not_before = one.facts.get("not_before")
        for execution in self._executions_of(one):
            who = f"{one.kind} {one.token}, job {execution.job}"
            if one.is_refused:
                yield Finding("early", f"{who} ran and was never committed.", execution.job)
            elif one.committing is not None and execution.began < one.committing:
                early = one.committing - execution.began
                yield Finding("early", f"{who} ran {early:.3f} s before its commit.", execution.job)
            if not_before is not None and execution.wall < not_before - CLOCK_SECONDS:
                early = not_before - execution.wall
                yield Finding("early", f"{who} ran {early:.3f} s before its moment.", execution.job)

    def _executions_of(self, one: Enqueued) -> list[Execution]:
        if one.is_duplicate:
            return []
        return self._by_token.get(one.token, [])

    @property
    def _by_token(self) -> dict[str, list[Execution]]:
        if not hasattr(self, "_tokens"):
            self._tokens: dict[str, list[Execution]] = defaultdict(list)
            for execution in self.facts.executions.values():
                self._tokens[execution.token.partition("/")[0]].append(execution)
        return self._tokens

    # Never doubled.

    def _doubled(self) -> Iterator[Finding]:
        jobs_of: dict[str, set[str]] = defaultdict(set)
        for execution in self.facts.executions.values():
            if execution.token:
                jobs_of[execution.token].add(execution.job)
        for token, jobs in jobs_of.items():
            requeued = {line["job"] for line in self.facts.requeues.get(token, [])}
            if len(jobs - requeued) > 1:
                yield Finding("doubled", f"{token} became {len(jobs)} jobs: {sorted(jobs)}.", token)
        for token, lines in self.facts.requeues.items():
            made = {line["job"] for line in lines if line["fate"] == "requeued"}
            good = [
                job for job in made if (end := self.ends.get(job)) and end.status == "SUCCESSFUL"
            ]
            if len(good) > 1:
                yield Finding("doubled", f"{token} was sent again as {len(good)} jobs.", token)
        for job, seen in self.facts.seen_ended.items():
            for execution in self.by_job.get(job, []):
                if execution.began > seen:
                    late = execution.began - seen
                    yield Finding("doubled", f"{job} ran {late:.2f} s after it had ended.", job)

    # Attempts.

    def _counted(self) -> Iterator[Finding]:
        kinds = {one.job: one.kind for one in self.facts.enqueued.values() if one.job}
        for job, executions in self.by_job.items():
            kind = kinds.get(job, "other")
            counted = [one for one in executions if self._is_counted(one)]
            if any(after.attempt <= before.attempt for before, after in pairwise(counted)):
                yield Finding(
                    "miscounted", f"{kind} {job} ran as attempts {_told(executions)}.", job
                )
                continue
            end = self.ends.get(job)
            if end is None or not end.exists:
                continue
            if end.attempts < len(counted):
                yield Finding(
                    "miscounted",
                    f"{kind} {job} has {end.attempts} attempts recorded, and {len(counted)} "
                    f"started: {_told(executions)}.",
                    job,
                )
        for job, end in self.ends.items():
            missing = end.attempts - len(self.by_job.get(job, []))
            if end.exists and missing > 0:
                self.phantoms[kinds.get(job, "other")] += missing

    def _is_counted(self, one: Execution) -> bool:
        """Return whether an execution counts as an attempt.

        One that its own cluster interrupted, to stop or because it could not extend the lease, is
        released uncounted. So is one whose worker was stopped between the last line of the task and
        its return: its cluster then interrupts it, too.
        """
        if one.ended is not None and any(
            one.ended - RETURN_SECONDS / 2 <= at <= one.ended + RETURN_SECONDS
            for at in self.stopped.get(one.pid, ())
        ):
            return False
        was_killed = self.killed.get(one.pid, -math.inf) >= one.began - DEATH_SECONDS
        is_cut_off_by_its_cluster = not one.how and not was_killed
        return one.how != "interrupted" and not is_cut_off_by_its_cluster

    def phantom_findings(self, workers_lost: int) -> Iterator[Finding]:
        """Yield a finding if more attempts than lost workers were counted without a start.

        A worker can be killed after it reported the start of a job and before the job wrote its
        first line, so one such attempt per lost worker is right.
        """
        count = self.phantoms.total()
        if count > workers_lost:
            yield Finding(
                "miscounted",
                f"{count} attempts were counted and never started ({dict(self.phantoms)}), and "
                f"{workers_lost} workers were lost.",
            )

    # Never too many at once.

    def _overlapping(self) -> Iterator[Finding]:
        for job, executions in self.by_job.items():
            yield from _overlaps(f"job {job}", executions, 1)
        for guard, places in (("lock", 1), ("limit", LIMIT), ("unique", 1), ("sequence", 1)):
            of_key: dict[str, list[Execution]] = defaultdict(list)
            for execution in self.facts.executions.values():
                if guard in execution.facts:
                    of_key[execution.facts[guard]].append(execution)
            for key, executions in of_key.items():
                executions.sort(key=lambda one: one.began)
                yield from _overlaps(f"{guard} {key}", executions, places)
        yield from self._rates()
        for one in self.facts.enqueued.values():
            if one.kind == "workflow":
                yield from self._steps(one)

    def _rates(self) -> Iterator[Finding]:
        """Check that no second has more starts than the rate allows."""
        starts = sorted(one.began for one in self.facts.executions.values() if "rate" in one.facts)
        for first, over in zip(starts, starts[RATE_PER_SECOND:], strict=False):
            if over - first < 1 - CLOCK_SECONDS:
                yield Finding(
                    "overlapping",
                    f"{RATE_PER_SECOND + 1} jobs of the rate started within {over - first:.3f} s.",
                )

    def _steps(self, one: Enqueued) -> Iterator[Finding]:
        """Check that each step began after the previous ones had ended."""
        steps: dict[int, list[Execution]] = defaultdict(list)
        for execution in self._by_token.get(one.token, []):
            steps[int(execution.token.partition("/")[2])].append(execution)
        is_chord = len(steps) > 3 or 4 in steps
        for number, executions in steps.items():
            before = range(number) if not is_chord else range(4 if number == 4 else 0)
            began = min(execution.began for execution in executions)
            for earlier in before:
                ended = [e.until for e in steps.get(earlier, []) if e.how == "ended"]
                if not ended or min(ended) > began:
                    yield Finding(
                        "early",
                        f"step {number} of {one.token} began before {earlier} ended.",
                        one.token,
                    )

    def _sequences(self) -> Iterator[Finding]:
        """Check that jobs of a sequence start in the order of their enqueues. One user enqueues all
        jobs of a sequence, one after another."""
        made = {one.job: one.facts["at"] for one in self.facts.enqueued.values() if one.job}
        firsts: dict[str, list[Execution]] = defaultdict(list)
        for executions in self.by_job.values():
            if "sequence" in executions[0].facts and executions[0].job in made:
                firsts[executions[0].facts["sequence"]].append(executions[0])
        for key, started in firsts.items():
            started.sort(key=lambda one: one.began)
            for before, after in pairwise(started):
                if made[after.job] < made[before.job]:
                    yield Finding(
                        "early",
                        f"{before.job} of sequence {key} started before {after.job}, which was "
                        "enqueued earlier.",
                        key,
                    )

    def _cancelled_jobs(self) -> Iterator[Finding]:
        for one in self.facts.enqueued.values():
            if one.cancelled is None:
                continue
            for execution in self.by_job.get(one.job, []):
                if execution.began > one.cancelled:
                    late = execution.began - one.cancelled
                    yield Finding(
                        "doubled",
                        f"{one.token} began {late:.2f} s after it was cancelled.",
                        one.job,
                    )

    def _ticks(self) -> Iterator[Finding]:
        ticks: dict[tuple[str, str], set[str]] = defaultdict(set)
        for execution in self.facts.executions.values():
            if "schedule" in execution.facts:
                tick = (execution.facts["schedule"], execution.facts["moment"])
                ticks[tick].add(execution.job)
        for (name, moment), jobs in ticks.items():
            if len(jobs) > 1:
                yield Finding("ticks", f"tick {moment} of {name} has {len(jobs)} jobs.", name)


EXPECTED_ENDS = {
    "once": {"SUCCESSFUL", "FAILED"},
    "failing": {"FAILED"},
    "cancelled": {"SUCCESSFUL", "CANCELLED"},
    "requeued": {"SUCCESSFUL", "FAILED"},
}


def _overlaps(who: str, executions: list[Execution], places: int) -> Iterator[Finding]:
    """Yield a finding each time that more executions run at once than there are places."""
    running: list[Execution] = []
    for execution in executions:
        running = [one for one in running if one.until > execution.began]
        running.append(execution)
        if len(running) > places:
            seconds = min(one.until for one in running) - execution.began
            yield Finding(
                "overlapping",
                f"{who} ran {len(running)} at once for {seconds:.3f} s: {_told(running)}.",
                who,
            )


def _told(executions: list[Execution]) -> str:
    return ", ".join(
        f"{one.attempt} ({one.began:.2f}-{one.until:.2f} {one.how or 'cut off'}, pid {one.pid}"
        f"{', job ' + one.job[-6:]})"
        for one in executions
    )


@dataclass(frozen=True)
class Span:
    """A span of time on the ledger's clock."""

    began: float
    ended: float = math.inf


def excused_spans(
    impairments: Iterable[tuple[int | None, float, float]], clusters: int
) -> list[Span]:
    """Return the times in which no cluster could be expected to work."""
    edges: list[tuple[float, int | None, int]] = []
    for cluster, began, ended in impairments:
        edges += [(began, cluster, 1), (ended, cluster, -1)]
    counts: Counter[int | None] = Counter()
    spans: list[Span] = []
    since: float | None = None
    for at, cluster, change in sorted(edges, key=lambda edge: (edge[0], -edge[2])):
        counts[cluster] += change
        is_excused = counts[None] > 0 or all(counts[number] > 0 for number in range(clusters))
        if is_excused and since is None:
            since = at
        elif not is_excused and since is not None:
            spans.append(Span(since, at))
            since = None
    if since is not None:
        spans.append(Span(since))
    return spans


def unexcused_seconds(began: float, ended: float, excused: Iterable[Span]) -> float:
    """Return how much of a time is not excused."""
    seconds = ended - began
    for span in excused:
        seconds -= max(0.0, min(ended, span.ended) - max(began, span.began))
    return seconds
