"""IronMQ, by version 3 of its API.

A message is reserved, and deleted when the store has its job (see ``carried``). The reservation's
id is IronMQ's fencing token: a release, a touch or a deletion that comes too late is refused.

Queues are named ``stoker-<cluster>-<band>-<queue>``; the band is the sign of the priority.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable

from .base import Capabilities, Message
from .ironmq_messages import AT_ONCE, escaped, loads, opened, posted, unescaped
from .ironmq_service import Refused, Service
from .lines import BANDS, Line, band_of, in_turn, lines_of
from .transport import HEAD_BYTES, Parcel, Transport, as_message

MESSAGE_BYTES = 64 << 10
"""Of a message, on every plan."""
KEPT_SECONDS = 30 * 86_400
"""IronMQ drops messages after that, at the latest."""
LINES_SECONDS = 2.0
"""How long the names of queues are good for."""
LONGEST_WAIT_SECONDS = 30
SHORTEST_RESERVATION_SECONDS = 30.0
GONE = (403, 404)
"""The reservation is over, or the message or queue is not there."""


class Reservation(NamedTuple):
    """By what a message is touched, released and deleted."""

    line: Line
    message_id: str
    reservation_id: str


class IronmqTransport(Transport):
    """One project.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    capabilities = Capabilities(
        priority=False,
        look_up=False,
        max_payload_bytes=MESSAGE_BYTES * 3 // 4 - HEAD_BYTES,
        max_delay_seconds=86_400.0,
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.parcel_seconds = max(SHORTEST_RESERVATION_SECONDS, self.parcel_seconds)
        self._service = Service(settings)
        self._prefix = f"stoker-{escaped(settings.cluster)}-"
        self._lines: set[Line] = set()
        self._lines_until = 0.0
        self._made: set[Line] = set()
        self._turn = 0

    # -- in ---------------------------------------------------------------------------------------

    def send(self, messages: Sequence[Message]) -> None:
        by_line: dict[Line, list[dict[str, Any]]] = defaultdict(list)
        for message in messages:
            line = Line(band_of(message.priority), message.queue)
            by_line[line].append(posted(message))
        for line, some in by_line.items():
            self._make(line)
            for load in loads(some):
                self._service.ask("POST", self._path(line, "messages"), {"messages": load})

    def _make(self, line: Line) -> None:
        """With a message, IronMQ would make a queue that keeps it for a week only."""
        if line in self._made:
            return
        kept = {"message_timeout": round(self.parcel_seconds), "message_expiration": KEPT_SECONDS}
        try:
            self._service.ask("GET", self._path(line))
        except Refused as refusal:
            if refusal.status not in GONE:
                raise
            self._service.ask("PUT", self._path(line), {"queue": kept})
        self._made.add(line)

    # -- out --------------------------------------------------------------------------------------

    def receive(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        passed_over: Collection[str] = (),
        wait_seconds: float = 0.0,
    ) -> list[Parcel]:
        """Each queue is a request: where there are several, IronMQ waits in one at a time."""
        self._turn += 1
        lines = list(in_turn(self._wanted(queues, passed_over), self._turn))
        parcels: list[Parcel] = []
        for line in lines:
            while len(parcels) < limit:
                wanted = min(limit - len(parcels), AT_ONCE)
                found = self._reserve(line, wanted)
                parcels += found
                if len(found) < wanted:
                    break
        if not parcels and wait_seconds and limit > 0:
            if not lines:
                time.sleep(wait_seconds)
                return []
            waits_at = lines[self._turn % len(lines)]
            wait = min(math.ceil(wait_seconds / len(lines)), LONGEST_WAIT_SECONDS)
            parcels = self._reserve(waits_at, min(limit, AT_ONCE), wait)
        return parcels

    def _reserve(self, line: Line, count: int, wait_seconds: int = 0) -> list[Parcel]:
        wanted = {"n": count, "timeout": round(self.parcel_seconds), "wait": wait_seconds}
        try:
            answer = self._service.ask(
                "POST", self._path(line, "reservations"), wanted, wait_seconds=wait_seconds
            )
        except Refused as refusal:
            if refusal.status != 404:
                raise
            self._lines.discard(line)
            return []
        return [
            Parcel(
                as_message(opened(one["body"]), line.queue),
                Reservation(line, str(one["id"]), str(one["reservation_id"])),
            )
            for one in answer.get("messages", ())
        ]

    def hold(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        held = []
        for parcel in parcels:
            with suppress(Refused):
                answer = self._about(parcel.receipt, "touch", timeout=round(self.parcel_seconds))
                known = parcel.receipt.reservation_id
                receipt = parcel.receipt._replace(
                    reservation_id=str(answer.get("reservation_id", known))
                )
                held.append(Parcel(parcel.message, receipt))
        return held

    def drop(self, parcels: Sequence[Parcel]) -> None:
        by_line: dict[Line, list[Reservation]] = defaultdict(list)
        for parcel in parcels:
            by_line[parcel.receipt.line].append(parcel.receipt)
        for line, receipts in by_line.items():
            for start in range(0, len(receipts), AT_ONCE):
                self._delete(line, receipts[start : start + AT_ONCE])

    def _delete(self, line: Line, receipts: Sequence[Reservation]) -> None:
        ids = [{"id": one.message_id, "reservation_id": one.reservation_id} for one in receipts]
        try:
            self._service.ask("DELETE", self._path(line, "messages"), {"ids": ids})
        except Refused as refusal:
            if refusal.status not in GONE:
                raise
            for one in receipts:  # somebody else has one of them, and will find that it is known
                with suppress(Refused):
                    path = self._path(line, "messages", one.message_id)
                    self._service.ask("DELETE", path, {"reservation_id": one.reservation_id})

    def give_back(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            with suppress(BrokerUnavailable):
                self._about(parcel.receipt, "release", delay=0)

    def _about(self, receipt: Reservation, verb: str, **what: Any) -> Any:
        path = self._path(receipt.line, "messages", receipt.message_id, verb)
        return self._service.ask("POST", path, {"reservation_id": receipt.reservation_id, **what})

    # -- looking ----------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for line in self._listed():
            counts[line.queue] += self._size(line)
        return counts

    def purge(self, queue: str) -> int:
        removed = 0
        for line in self._listed() & set(lines_of([queue])):
            removed += self._size(line)
            with suppress(Refused):
                self._service.ask("DELETE", self._path(line, "messages"), {})
        return removed

    def _size(self, line: Line) -> int:
        return int(self._about_line(line).get("size", 0))

    def _about_line(self, line: Line) -> dict[str, Any]:
        try:
            return dict(self._service.ask("GET", self._path(line)).get("queue", {}))
        except Refused as refusal:
            if refusal.status not in GONE:
                raise
            return {}

    def ping(self) -> None:
        self._service.ask("GET", "queues?per_page=1")

    def info(self) -> dict[str, Any]:
        self.ping()
        return {"broker": self._service.shown, "server": "IronMQ 3"}

    def weaknesses(self) -> list[str]:
        found = []
        for line in sorted(self._listed()):
            about = self._about_line(line)
            kept_seconds = int(about.get("message_expiration", KEPT_SECONDS))
            if kept_seconds < KEPT_SECONDS:
                found.append(
                    f"IronMQ drops jobs of {self._named(line)} that no cluster has fetched for "
                    f"{kept_seconds / 86_400:g} days. Set its message_expiration to {KEPT_SECONDS}."
                )
            if about.get("dead_letter"):
                found.append(
                    f"IronMQ takes jobs of {self._named(line)} away that were reserved several "
                    "times, also where only the database was down. Remove its dead_letter."
                )
        return found

    def close(self) -> None:
        self._service.close()

    # -- queues -----------------------------------------------------------------------------------

    def _wanted(self, queues: Sequence[str], passed_over: Collection[str]) -> list[Line]:
        if time.monotonic() >= self._lines_until:
            self._lines = self._listed()
            self._lines_until = time.monotonic() + LINES_SECONDS
        return [
            line
            for line in self._lines | self._made
            if (not queues or line.queue in queues) and line.queue not in passed_over
        ]

    def _listed(self) -> set[Line]:
        return set(self._pages())

    def _pages(self) -> Iterator[Line]:
        previous = ""
        while True:
            page = f"queues?per_page={AT_ONCE}&prefix={quote(self._prefix)}"
            answer = self._service.ask("GET", page + (f"&previous={previous}" if previous else ""))
            names = [str(one["name"]) for one in answer.get("queues", ())]
            for name in names:
                band, _, queue = name.removeprefix(self._prefix).partition("-")
                if name.startswith(self._prefix) and band in BANDS:
                    yield Line(band, unescaped(queue))
            if len(names) < AT_ONCE:
                return
            previous = quote(names[-1])

    def _named(self, line: Line) -> str:
        return f"{self._prefix}{line.band}-{escaped(line.queue)}"

    def _path(self, line: Line, *rest: str) -> str:
        return "/".join(["queues", self._named(line), *rest])
