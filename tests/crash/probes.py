"""Probes: plain jobs enqueued every half second past the proxies, and how long each takes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.ledger import Ledger, now
from tests.crash.verdict import Facts, Finding, Span, unexcused_seconds

EVERY_SECONDS = 0.5
MANY = 3
"""A killed cluster cannot have received this many probes committed after the last start."""


@dataclass
class Probe:
    """A probe: when it was committed, and when the API first reported its end."""

    token: str
    job: str
    committed: float
    recorded: float | None = None


@dataclass
class Delays:
    """The longest delays of a round in seconds, without the time in which no cluster could work."""

    longest_start: float = 0.0
    longest_gap: float = 0.0
    longest_record: float = 0.0
    findings: list[Finding] = field(default_factory=list)


class Probes:
    """Enqueues probes and reads their results in a separate thread."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = Ledger(ledger)
        self._probes: list[Probe] = []
        self._lock = threading.Lock()
        self._stops = threading.Event()
        self._rests = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._count = 0

    def start(self) -> None:
        self._thread.start()

    def rest(self, is_resting: bool) -> None:
        (self._rests.set if is_resting else self._rests.clear)()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join(10)

    def take(self) -> list[Probe]:
        """Return the probes of this round and start a new one."""
        with self._lock:
            taken, self._probes = self._probes, []
        return taken

    def unrecorded(self) -> list[Probe]:
        with self._lock:
            return [one for one in self._probes if one.recorded is None]

    def _go_on(self) -> None:
        from django.db import connections

        while not self._stops.wait(EVERY_SECONDS):
            try:
                if not self._rests.is_set():
                    self._enqueue()
                self._look()
            except Exception as error:  # noqa: BLE001 - a server may be down at any moment
                self._ledger.write("trouble", action="probe", error=f"{error}"[:300])
                for connection in connections.all(initialized_only=True):
                    with suppress(Exception):
                        connection.close()

    def _enqueue(self) -> None:
        from tests.crash import tasks

        self._count += 1
        token = f"probe.{self._count}"
        self._ledger.write("will", token=token, kind="probe")
        self._ledger.write("committing", token=token)
        try:
            job = tasks.probe.enqueue(token).id
        except BaseException:
            self._ledger.write("unsure", token=token)
            raise
        committed = now()
        self._ledger.write("made", token=token, job=job)
        self._ledger.write("committed", token=token)
        with self._lock:
            self._probes.append(Probe(token, job, committed))

    def _look(self) -> None:
        from tests.crash import tasks

        backend: Any = tasks.probe.get_backend()
        for probe in self.unrecorded()[:50]:
            if backend.get_result(probe.job).is_finished:
                probe.recorded = now()
                self._ledger.write("seen_ended", is_synced=False, job=probe.job)


def judge_delays(
    probes: Iterable[Probe],
    facts: Facts,
    excused: list[Span],
    until: float,
    limit: float,
    redelivery_seconds: float = 0.0,
) -> Delays:
    """Find the longest delays: of a start, between two starts, and of recording.

    Args:
        probes: the probes of the round.
        facts: the ledger of the round.
        excused: the times in which no cluster could work.
        until: when the round ended.
        limit: the longest delay allowed, in seconds.
        redelivery_seconds: how long the broker withholds a message that a killed cluster had
            received. If only such messages may wait, a start may take that much longer.
    """
    delays = Delays()
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    for one in facts.executions.values():
        if one.token.startswith("probe."):
            began[one.token] = min(one.began, began.get(one.token, one.began))
            if one.how == "ended":
                ended[one.token] = max(one.until, ended.get(one.token, 0.0))
    waiting = sorted(probes, key=lambda one: one.committed)
    for probe in waiting:
        start = began.get(probe.token, until)
        seconds = unexcused_seconds(probe.committed, max(start, probe.committed), excused)
        delays.longest_start = max(delays.longest_start, seconds)
        if probe.token in ended:
            recorded = probe.recorded or until
            seconds = unexcused_seconds(
                ended[probe.token], max(recorded, ended[probe.token]), excused
            )
            delays.longest_record = max(delays.longest_record, seconds)
            if seconds > limit:
                delays.findings.append(
                    Finding(
                        "stalled",
                        f"{probe.token} had ended at {ended[probe.token]:.1f}, and was recorded "
                        f"{seconds:.1f} s later.",
                        probe.job,
                    )
                )
    starts = sorted(began.values())
    marks = [waiting[0].committed, *starts, until] if waiting else []
    for before, after in itertools.pairwise(marks):
        seconds = unexcused_seconds(before, after, excused)
        waited = [
            one
            for one in waiting
            if one.committed <= before + seconds / 2 and began.get(one.token, until) >= after
        ]
        if seconds > delays.longest_gap and waited:
            delays.longest_gap = seconds
            are_new = sum(one.committed > before for one in waited) >= MANY
            if seconds > limit + (0.0 if are_new else redelivery_seconds):
                delays.findings.append(
                    Finding(
                        "stalled",
                        f"No plain job started for {seconds:.1f} s, from {before:.1f} to "
                        f"{after:.1f}, though some waited.",
                    )
                )
    return delays
