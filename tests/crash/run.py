"""One run: rounds of faults, and a verdict after each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.faults import FaultPlan, Faults, plan
from tests.crash.ledger import LedgerReader, now
from tests.crash.probes import Delays, Probes, judge_delays
from tests.crash.stage import LEASE_SECONDS, Stage
from tests.crash.verdict import End, Facts, Finding, Judge, excused_spans
from tests.servers.private import ROOT

FAULTS_PER_ROUND = 40
USERS = 2
CARRIED = ("sqs", "disque", "ironmq")
"""Brokers that cannot look up a single job, so an uncommitted job seems to wait in them."""
STALL_SECONDS = 2 * LEASE_SECONDS
REDELIVERY_SECONDS = {"sqs": LEASE_SECONDS, "disque": LEASE_SECONDS, "ironmq": 30.0}
"""The time after which a server redelivers messages that a killed cluster had received but not
written to the database. IronMQ allows no less."""


@dataclass(frozen=True)
class Plan:
    """The options of a run."""

    broker: str
    faults: int
    seed: int
    clusters: int = 2
    source: Path | None = None
    report: Path | None = None
    keep: Path | None = None
    faults_per_round: int = FAULTS_PER_ROUND
    fault_plan: FaultPlan = plan
    mistake: str = ""
    """The name of a mistake to plant."""
    settle_seconds: float = 120.0
    """How long a round may take to settle without any progress."""
    until: frozenset[str] = frozenset()
    """Kinds of findings that end the run."""


class Users:
    """The user processes."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.seed = seed
        self.go = stage.folder / "go"
        self.started = 0
        self.killed = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.go.touch()
        self.processes = [self._start(number) for number in range(USERS)]

    def kill(self, choice: int) -> int:
        """Kill a user and start another. Return the process id."""
        number = choice % len(self.processes)
        victim = self.processes[number]
        victim.kill()
        victim.wait()
        self.killed += 1
        self.processes[number] = self._start(number)
        return victim.pid

    def rest(self) -> None:
        """Tell the users to pause."""
        self.go.unlink(missing_ok=True)

    def work(self) -> None:
        self.go.touch()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def pids(self) -> set[int]:
        return {process.pid for process in self.processes}

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self.started += 1
        seed = self.seed * 1000 + self.started
        with (self.stage.folder / "users.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.crash.users", str(number), str(seed)],
                cwd=ROOT,
                env=self.stage.environment("users") | {"STOKER_CRASH_GO": str(self.go)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


class Run:
    """A run from its first fault to its report."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stage = Stage(plan.broker, plan.clusters, plan.source, plan.mistake)
        self.findings: list[Finding] = []
        self.totals: Counter[str] = Counter()
        self.phantoms: Counter[str] = Counter()
        self.longest = Delays()
        self.unended_workflows: list[str] = []
        """Tokens of the round that is being judged."""
        self.began = time.monotonic()

    def go(self) -> list[Finding]:
        """Run, and return the findings."""
        self._say(
            f"crash checker: BROKER={self.plan.broker} SEED={self.plan.seed} "
            f"CLUSTERS={self.plan.clusters} FAULTS={self.plan.faults or 'endless'}"
            + (f", planted: {self.plan.mistake}" if self.plan.mistake else "")
        )
        with self.stage as stage:
            self._set_up_django()
            self._make_schedules()
            self.users = Users(stage, self.plan.seed)
            self.probes = Probes(stage.ledger)
            self.reader = LedgerReader(stage.ledger)
            self.faults = Faults(stage, self.users, self._say)
            try:
                stage.start_clusters()
                self.users.start()
                self.probes.start()
                self._rounds()
            except KeyboardInterrupt:
                self._say("interrupted")
            finally:
                self.users.end()
                self.probes.stop()
                self._close_connections()
        self._report()
        return self.findings

    # Rounds.

    def _rounds(self) -> None:
        has_lines = bool(self.stage.servers)
        faults = self.plan.fault_plan(self.plan.seed, self.plan.clusters, has_lines)
        struck = 0
        number = 0
        while not self.plan.faults or struck < self.plan.faults:
            number += 1
            count = self.plan.faults_per_round
            if self.plan.faults:
                count = min(count, self.plan.faults - struck)
            self.facts = Facts()
            self.began_at = now()
            self.stage.impairments[:] = [one for one in self.stage.impairments if one.ended is None]
            before = self.faults.workers_lost
            for _, fault in zip(range(count), faults, strict=False):
                self._tend(fault.pause)
                self.faults.strike(fault)
            struck += count
            self._tend(1.0)
            self._judge(number, self.faults.workers_lost - before)
            if self.plan.until & {one.kind for one in self.findings}:
                return
            if not self.plan.faults or struck < self.plan.faults:
                self.users.work()
                self.probes.rest(False)

    def _tend(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            self.faults.tend()
            self.facts.add(self.reader)
            if time.monotonic() >= until:
                return
            time.sleep(0.02)

    # A verdict.

    def _judge(self, number: int, workers_lost: int) -> None:
        self._come_to_rest()
        ends = self._settle()
        judge = Judge(self.facts, ends, self.faults.killed, self.faults.stopped)
        findings = [*judge.findings(), *judge.phantom_findings(workers_lost)]
        findings += [
            Finding("lost", f"The workflow of {token} has not ended.", token)
            for token in self.unended_workflows
        ]
        until = now()
        impairments = [
            (one.cluster, one.began, one.ended or until) for one in self.stage.impairments
        ]
        excused = excused_spans(
            [(one, max(began, self.began_at), ended) for one, began, ended in impairments],
            self.plan.clusters,
        )
        redelivery_seconds = REDELIVERY_SECONDS.get(self.plan.broker, 0.0)
        delays = judge_delays(
            self.probes.take(), self.facts, excused, until, STALL_SECONDS, redelivery_seconds
        )
        findings += delays.findings
        self._add_up(judge, ends, delays, excused)
        self.findings += findings
        verdict = "good" if not findings else f"{len(findings)} FINDINGS"
        self._say(f"round {number}: {verdict}")
        self._say(
            f"  {len(ends)} jobs, {len(self.facts.executions)} executions; the longest wait for a "
            f"start {delays.longest_start:.1f} s, between starts {delays.longest_gap:.1f} s, for "
            f"a record {delays.longest_record:.1f} s, without the "
            f"{sum(span.ended - span.began for span in excused):.0f} s of outages; counted and "
            f"never started: {dict(judge.phantoms)}; "
            f"users' troubles: {sum(self.facts.troubles.values())}"
        )
        for finding in findings:
            self._say(f"  {finding.kind.upper()}: {finding.sentence}")
        if findings and self.plan.keep:
            self._keep(number)

    def _add_up(self, judge: Judge, ends: dict[str, End], delays: Delays, excused: Any) -> None:
        executions = self.facts.executions.values()
        self.totals["jobs"] += len(ends)
        self.totals["committed"] += sum(
            one.outcome == "committed" for one in self.facts.enqueued.values()
        )
        self.totals["uncertain"] += sum(
            one.outcome in {"", "unsure"} for one in self.facts.enqueued.values()
        )
        self.totals["executions"] += len(executions)
        self.totals["cut off"] += sum(one.ended is None for one in executions)
        self.totals["ticks"] += sum("schedule" in one.facts for one in executions)
        self.phantoms.update(judge.phantoms)
        for name in ("longest_start", "longest_gap", "longest_record"):
            setattr(self.longest, name, max(getattr(self.longest, name), getattr(delays, name)))

    def _come_to_rest(self) -> None:
        """Heal all faults, and wait until users and clusters are idle."""
        self.faults.heal_all()
        self.users.rest()
        self.probes.rest(True)
        resting: set[int] = set()
        until = time.monotonic() + self.plan.settle_seconds
        while not self.users.pids() <= resting and time.monotonic() < until:
            self.faults.tend()
            lines = list(self.reader)
            self.facts.add(lines)
            resting |= {line["pid"] for line in lines if line["event"] == "resting"}
            time.sleep(0.05)
        while self.faults.healings and time.monotonic() < until:
            self._tend(0.1)

    def _settle(self) -> dict[str, End]:
        """Wait until every job has ended, while there is progress. Return the ends."""
        ends: dict[str, End] = {}
        self.unended_workflows = []
        began = now()
        until = time.monotonic() + self.plan.settle_seconds
        before, told = -1, time.monotonic()
        while True:
            self._tend(0.2)
            jobs = self._jobs(began)
            left = [job for job in jobs if job not in ends or not _is_over(ends[job])]
            flows = ["?"]
            try:
                for job in left:
                    ends[job] = self._end_of(job)
                flows = self._unended_workflows()
            except Exception:  # noqa: BLE001 - the server may just have been restarted
                self._close_connections()
            left = [job for job in jobs if job not in ends or not _is_over(ends[job])]
            if not left and not flows:
                break
            if time.monotonic() > told + 20:
                told = time.monotonic()
                self._say(f"     waiting for {len(left)} jobs and {len(flows)} workflows")
            if len(left) != before:
                before, until = len(left), time.monotonic() + self.plan.settle_seconds
            if time.monotonic() > until:
                self.unended_workflows = flows
                for job in left[:20]:
                    ends.setdefault(job, End(True)).explanation = self._why(job)
                break
        self._tend(0.1)
        return ends

    def _jobs(self, until: float) -> list[str]:
        """Return all known jobs, except those of new ticks, which never stop."""
        jobs = {one.job for one in self.facts.enqueued.values() if one.job}
        jobs |= {
            one.job
            for one in self.facts.executions.values()
            if one.began < until or "schedule" not in one.facts
        }
        jobs |= {line["job"] for lines in self.facts.requeues.values() for line in lines}
        return sorted(job for job in jobs if job)

    def _end_of(self, job: str) -> End:
        from tests.crash import tasks

        backend: Any = tasks.plain.get_backend()
        try:
            result = backend.get_result(job)
        except Exception as error:
            if type(error).__name__ != "TaskResultDoesNotExist":
                raise
            return End(False)
        if self.plan.broker in CARRIED and str(result.state) == "READY":
            promised = {one.job for one in self.facts.enqueued.values() if one.is_promised}
            if job not in promised:  # the broker cannot tell whether it has the job
                return End(False)
        value = result.return_value if str(result.state) == "SUCCESSFUL" else None
        errors = [one.exception_class_path for one in result.errors]
        text = ", ".join(f"{count} x {name}" for name, count in Counter(errors).items())
        return End(True, str(result.state), result.attempts, value, text)

    def _unended_workflows(self) -> list[str]:
        from stoker import WorkflowNotFound, get_workflow

        left = []
        for one in self.facts.enqueued.values():
            if one.workflow and "seen" not in one.facts:
                try:
                    flow = get_workflow(one.workflow)
                    if not flow.is_finished:
                        left.append(one.token)
                        continue
                    one.facts["seen"] = flow.status
                except WorkflowNotFound:
                    one.facts["seen"] = "missing"
        return left

    def _why(self, job: str) -> str:
        command = [sys.executable, "-m", "django", "stoker", "why", job]
        done = subprocess.run(
            command, cwd=ROOT, env=self.stage.environment(None), capture_output=True, check=False
        )
        return " ".join(done.stdout.decode(errors="replace").split())

    # Around it.

    def _set_up_django(self) -> None:
        os.environ.update(self.stage.environment(None))
        if str(self.stage.source) not in sys.path:
            sys.path.insert(0, str(self.stage.source))
        import django

        django.setup()

    def _make_schedules(self) -> None:
        from stoker import Cron, every, schedules

        kinds = {
            "each second": every(seconds=1, args=["each second"]),
            "cron": Cron("*/2 * * * * *", args=["cron"]),
            "all": every(seconds=2, misfire="all", args=["all"]),
            "skip": every(seconds=3, misfire="skip", grace=2, args=["skip"]),
        }
        if self.plan.broker in {
            "postgres",
            "mariadb",
            "sqlite",
        }:  # others don't know what has ended
            kinds["queue"] = every(seconds=1, overlap="queue", args=["queue"])
        for name, when in kinds.items():
            schedules.upsert(name, "tests.crash.tasks.scheduled", when)

    def _close_connections(self) -> None:
        from django.db import connections

        for connection in connections.all(initialized_only=True):
            with suppress(Exception):  # the server may be down
                connection.close()

    def _keep(self, number: int) -> None:
        assert self.plan.keep is not None
        folder = self.plan.keep / f"{self.plan.broker}-{self.plan.seed}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in [self.stage.ledger, *self.stage.folder.glob("*.log")]:
            shutil.copy(path, folder / path.name)
        self._say(f"  kept in {folder}")

    def _report(self) -> None:
        kinds = Counter(one.kind for one in self.findings)
        report = {
            "broker": self.plan.broker,
            "seed": self.plan.seed,
            "clusters": self.plan.clusters,
            "faults": sum(self.faults.counts.values()),
            "by kind": dict(sorted(self.faults.counts.items())),
            **self.totals,
            "findings": dict(kinds),
            "never started but counted": dict(self.phantoms),
            "longest start": round(self.longest.longest_start, 2),
            "longest gap": round(self.longest.longest_gap, 2),
            "longest record": round(self.longest.longest_record, 2),
            "minutes": round((time.monotonic() - self.began) / 60, 1),
        }
        self._say(json.dumps(report, indent=1))
        if self.plan.report:
            with self.plan.report.open("a") as file:
                file.write(json.dumps(report) + "\n")

    def _say(self, text: str) -> None:
        print(f"{now():10.2f} {text}", flush=True)


def _is_over(end: End) -> bool:
    return not end.exists or end.status in {"SUCCESSFUL", "FAILED", "CANCELLED"}
