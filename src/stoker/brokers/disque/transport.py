"""Disque: a cluster of nodes that all accept and deliver jobs.

A job is acknowledged once the store has it (see ``arrivals``). Disque keeps copies on several nodes
and delivers a job again when its retry time has passed, perhaps more than once: the store
recognises repeated ids. So any step that fails can be retried on another node.

Queues are named ``stoker:<cluster>:<band>:<queue>``; the band is the sign of the priority. A claim
takes urgent jobs first; within a band, Disque's order applies until a job is in the store.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from stoker.brokers.contract import Capabilities
from stoker.brokers.transport import (
    BANDS,
    Line,
    Parcel,
    Transport,
    as_body,
    as_message,
    band_of,
    in_turn,
    lines_of,
    warnings_of_name,
)
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.models.job import Message

from .nodes import DisqueNode, Nodes

AT_ONCE = 500
TTL_SECONDS = 10 * 365 * 86_400
"""Disque drops jobs after this time. It is longer than any job waits."""
NAMES_SECONDS = 1.0
"""How long a list of queue names is used."""


class DisqueTransport(Transport):
    """Send and receive jobs through the Disque nodes of the broker's URL.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    capabilities = Capabilities(
        priority=False,
        look_up=False,
        max_payload_bytes=256 << 10,
        max_delay_seconds=86_400.0,
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._nodes = Nodes(settings)
        self._prefix = f"stoker:{settings.cluster}:"
        self._lines: list[Line] = []
        self._lines_until = 0.0
        self._turn = 0

    # -- in ---------------------------------------------------------------------------------------

    def send(self, messages: Sequence[Message]) -> None:
        commands = [self._addjob(message) for message in messages]
        for start in range(0, len(commands), AT_ONCE):
            self._send(commands[start : start + AT_ONCE])

    def _send(self, commands: list[list[Any]]) -> None:
        """Send the commands to a node, and the commands that it refuses to the next node."""
        failures: list[Exception] = []
        for node in self._nodes.each():
            answers = self._nodes.answers(node, commands)
            failed = [isinstance(answer, Exception) for answer in answers]
            failures += itertools.compress(answers, failed)
            commands = list(itertools.compress(commands, failed))
            if not commands:
                return
        refusals = [one for one in failures if isinstance(one, ResponseError)]
        raise self._nodes.explain((refusals or failures)[0])

    def _addjob(self, message: Message) -> list[Any]:
        name = self._name(Line(band_of(message.priority), message.queue))
        command = ["ADDJOB", name, as_body(message), self._nodes.copy_milliseconds]
        command += ["REPLICATE", self._nodes.copies]
        if message.run_after is not None:
            delay_seconds = -int(time.time() - message.run_after)  # rounded up
            command += ["DELAY", delay_seconds] if delay_seconds > 0 else []
        return [*command, "RETRY", round(self.parcel_seconds), "TTL", TTL_SECONDS]

    # -- out --------------------------------------------------------------------------------------

    def receive(
        self, queues: Sequence[str], limit: int, *, wait_seconds: float = 0.0
    ) -> list[Parcel]:
        """Receive jobs from the preferred node.

        A node without jobs asks the other nodes itself if the request may wait. If it may not wait,
        this asks the nodes one after another.
        """
        lines = lines_of(queues) if queues else self._known_lines()
        if not lines or limit <= 0:
            time.sleep(wait_seconds / 4)
            return []
        self._turn += 1
        own = {self._name(line): line.queue for line in in_turn(lines, self._turn)}
        found: list[Parcel] = []
        while len(found) < limit:
            wanted = min(limit - len(found), AT_ONCE)
            try:
                jobs = self._jobs(list(own), wanted, 0.0 if found else wait_seconds)
            except BrokerUnavailable:
                if not found:  # otherwise the received jobs would be hidden for a while
                    raise
                break
            found += [Parcel(as_message(body, own[name.decode()]), one) for name, one, body in jobs]
            if len(jobs) < wanted:
                break
        self._nodes.note_origins(parcel.receipt for parcel in found)
        return found

    def _jobs(self, names: Sequence[str], count: int, wait_seconds: float) -> list[Any]:
        how = ["TIMEOUT", round(wait_seconds * 1000)] if wait_seconds else ["NOHANG"]
        command = ["GETJOB", *how, "COUNT", count, "FROM", *names]
        if wait_seconds:
            return self._nodes.ask(command, wait_seconds=wait_seconds) or []
        return self._nodes.first_answer(command) or []

    def extend(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        answers = self._nodes.answers(None, [["WORKING", parcel.receipt] for parcel in parcels])
        held = zip(parcels, answers, strict=True)
        return [parcel for parcel, answer in held if not isinstance(answer, Exception)]

    def drop(self, parcels: Sequence[Parcel]) -> None:
        self._acknowledge([parcel.receipt for parcel in parcels])

    def _acknowledge(self, job_ids: Sequence[bytes]) -> None:
        for start in range(0, len(job_ids), AT_ONCE):
            self._nodes.ask(["ACKJOB", *job_ids[start : start + AT_ONCE]])

    def release(self, parcels: Sequence[Parcel]) -> None:
        with suppress(BrokerUnavailable):  # the server delivers them again after their retry time
            self._nodes.ask(["NACK", *[parcel.receipt for parcel in parcels]])

    # -- looking ----------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Count the jobs of each queue. Leave out empty queues, because a node lists a queue for a
        while after its last job."""
        counts: Counter[str] = Counter()
        for found in self._nodes.of_each(self._counts_on):
            counts.update(found)
        return counts

    def _counts_on(self, node: DisqueNode) -> Counter[str]:
        counts: Counter[str] = Counter()
        lines = self._lines_on(node)
        lengths = self._nodes.answers(node, [["QLEN", self._name(line)] for line in lines])
        for line, length in zip(lines, lengths, strict=True):
            if isinstance(length, Exception):
                raise length
            if length:
                counts[line.queue] += length
        return counts

    def purge(self, queue: str) -> int:
        """Remove all waiting jobs of the queue, including jobs that are not due yet."""
        names = [self._name(line) for line in lines_of([queue])]
        states = [word for one in ("queued", "active") for word in ("STATE", one)]

        def waiting_on(node: DisqueNode) -> set[bytes]:
            words = ("JSCAN", "COUNT", AT_ONCE, "QUEUE")
            return {one for name in names for one in self._scan(node, *words, name, *states)}

        job_ids = set().union(*self._nodes.of_each(waiting_on))
        self._acknowledge(list(job_ids))
        return len(job_ids)

    def ping(self) -> None:
        self._nodes.ask(["PING"])

    def info(self) -> dict[str, Any]:
        told = self._nodes.ask(["INFO", "server"]).decode(errors="replace")
        said = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        version = said.get("disque_version", "")
        return {"broker": self.settings.shown_broker, "server": f"Disque {version}".strip()}

    def weaknesses(self) -> list[str]:
        return self._nodes.weaknesses() + warnings_of_name(self.settings.cluster, ":")

    def close(self) -> None:
        self._nodes.close()

    # -- queues -----------------------------------------------------------------------------------

    def _known_lines(self) -> list[Line]:
        if time.monotonic() >= self._lines_until:
            self._lines = list(set().union(*self._nodes.of_each(self._lines_on)))
            self._lines_until = time.monotonic() + NAMES_SECONDS
        return self._lines

    def _lines_on(self, node: DisqueNode) -> set[Line]:
        lines: set[Line] = set()
        for name in self._scan(node, "QSCAN", "COUNT", AT_ONCE):
            rest = name.decode(errors="replace")
            if rest.startswith(self._prefix):
                band, _, queue = rest.removeprefix(self._prefix).partition(":")
                if band in BANDS:
                    lines.add(Line(band, queue))
        return lines

    def _name(self, line: Line) -> str:
        return f"{self._prefix}{line.band}:{line.queue}"

    def _scan(self, node: DisqueNode, command: str, *words: Any) -> Iterator[bytes]:
        """Yield all entries of a node.

        Raises:
            BrokerUnavailable: the node refuses the command.
            RedisError, OSError: the node is away.
        """
        cursor: bytes | str = "0"
        while True:
            (answer,) = self._nodes.answers(node, [[command, cursor, *words]])
            if isinstance(answer, ResponseError):
                raise self._nodes.explain(answer)
            if isinstance(answer, Exception):
                raise answer
            cursor, found = answer
            yield from found
            if int(cursor) == 0:
                return
