"""Redis and Valkey, alone, by sentinels, or as a cluster.

One script for each step, so that each happens whole or not at all. Leases and delays are judged by
the server's clock. A reply that is lost leaves nothing in doubt for long: what a claim leased is
found by its holder, a relay and a settlement can be repeated. The keys are named at the top of
``lua/common.lua``; all have one tag, so that a Redis cluster keeps them in one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from importlib.resources import files
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.ids import new_lease_id
from stoker.models.clock import MICROSECONDS, microseconds

from .base import Broker, Capabilities, Delivery, Lease, Message, Return
from .redis_connection import (
    FAILURES,
    about,
    connect,
    disconnect,
    explained,
    weaknesses,
    without_password,
)
from .redis_wake import RedisWake

AT_ONCE = 500
RELAYED_SECONDS = 24 * 3600.0
"""How long a job that came from an outbox is remembered: no relay takes so long to be repeated."""
LOAD_JOBS = 100_000
"""Redis takes a million words in one command, and a job has five."""
LOAD_BYTES = 256 << 20
KEYS = ("job", "package", "deferred", "leases", "queues", "relayed")


class RedisBroker(Broker):
    """Jobs in one Redis, kept under names that begin with the cluster's."""

    capabilities = Capabilities()

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.prefix = f"{{stoker:{settings.cluster}}}"
        self._keys = [f"{self.prefix}:{name}" for name in KEYS]
        self.channel = f"{self.prefix}:wake"
        self.client: Any = connect(settings)
        self._scripts: dict[str, Callable[..., Any]] = {}

    # -- in ---------------------------------------------------------------------------------------

    def enqueue(self, messages: Sequence[Message]) -> None:
        """All or none of as many as Redis takes at once: see ``LOAD_JOBS``."""
        self._enqueue(messages, 0)

    def relay(self, messages: Sequence[Message]) -> None:
        self._enqueue(messages, microseconds(RELAYED_SECONDS))

    def _enqueue(self, messages: Sequence[Message], remember_us: int) -> None:
        for some in _loads(messages):
            arguments: list[Any] = [self.channel, remember_us]
            for one in some:
                due = "" if one.run_after is None else microseconds(one.run_after)
                arguments += [one.job_id.hex, one.package, one.queue, -one.priority, due]
            self._run("enqueue", arguments)

    # -- out --------------------------------------------------------------------------------------

    def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        holder: UUID,
        lease_seconds: float,
        rated_limit: int = 1,
        permit_seconds: float = 0.0,
        passed_over: Collection[str] = (),
    ) -> list[Delivery]:
        head = [limit, _lease_id(), holder.hex, microseconds(lease_seconds), len(queues)]
        return _deliveries(self._run("claim", [*head, *queues, *passed_over]))

    def claim_expired(self, limit: int, *, holder: UUID, lease_seconds: float) -> list[Delivery]:
        head = [limit, _lease_id(), holder.hex, microseconds(lease_seconds)]
        return _deliveries(self._run("claim_expired", head))

    # -- leases -----------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        arguments: list[Any] = [microseconds(lease_seconds)]
        for lease in leases:
            arguments += _named(lease)
        return {leases[place] for place in self._run("extend", arguments)} if leases else set()

    def ack(self, leases: Sequence[Lease], *, failed: Collection[UUID] = ()) -> set[Lease]:
        return self.settle(leases, (), failed=failed)

    def release(self, returns: Sequence[Return]) -> set[Lease]:
        return self.settle((), returns)

    def settle(
        self, over: Sequence[Lease], again: Sequence[Return], *, failed: Collection[UUID] = ()
    ) -> set[Lease]:
        leases = [*over, *(back.lease for back in again)]
        arguments: list[Any] = [len(over)]
        for lease in over:
            arguments += _named(lease)
        for back in again:
            delay_us = microseconds(back.delay_seconds)
            arguments += [*_named(back.lease), delay_us, back.attempts, back.crashes]
        if not leases:
            return set()
        stale = {leases[place] for place in self._run("settle", arguments)}
        if any(back.delay_seconds <= 0 for back in again):
            self.wake_up(())
        return stale

    def expire_holder(self, holder: UUID) -> int:
        return int(self._run("expire_holder", [holder.hex]))

    def held_by(self, holder: UUID) -> list[Delivery]:
        """With their packages: no other place has them."""
        found = []
        for ids in self._pages("leases"):
            for job_id, known in zip(ids, self._run("look", ids), strict=True):
                if known and known[5] == holder.hex.encode():
                    found.append((job_id, known))
        packages = self._packages([job_id for job_id, _ in found])
        return [
            _delivery([job_id, package, *known[:5]])
            for (job_id, known), package in zip(found, packages, strict=True)
        ]

    # -- looking ----------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        gone: set[UUID] = set()
        for some in _batches([job_id.hex for job_id in job_ids]):
            gone |= {UUID(one.decode()) for one in self._run("withdraw", some)}
        return gone

    def whereabouts(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        found = {}
        for some in _batches([job_id.hex for job_id in job_ids]):
            for job_id, known in zip(some, self._run("look", some), strict=True):
                if known:
                    found[UUID(job_id)] = _state(known)
        return found

    def sizes(self) -> dict[str, dict[str, int]]:
        sizes: dict[str, dict[str, int]] = {}
        with self._explained():
            names = sorted(self.client.smembers(self._keys[4]))
            for name in names:
                ready = self.client.zcard(f"{self.prefix}:ready:".encode() + name)
                sizes[name.decode()] = {"ready": ready, "deferred": 0, "blocked": 0, "running": 0}
        for place in ("deferred", "leases"):
            for ids in self._pages(place):
                for known in self._run("look", ids):
                    if known:
                        sizes[known[0].decode()][_state(known)] += place != "ready"
        return {queue: size for queue, size in sizes.items() if any(size.values())}

    def purge(self, queue: str) -> int:
        removed = 0
        ready = f"{self.prefix}:ready:{queue}"
        while ids := self._first(ready):
            removed += len(self._run("withdraw", ids))
        for ids in list(self._pages("deferred")):
            known = zip(ids, self._run("look", ids), strict=True)
            ours = [one for one, what in known if what and what[0].decode() == queue]
            removed += len(self._run("withdraw", ours)) if ours else 0
        return removed

    def ping(self) -> None:
        with self._explained():
            self.client.ping()

    def info(self) -> dict[str, Any]:
        with self._explained():
            server = about(self.client, "server")
        kind = "Valkey" if "valkey_version" in server else "Redis"
        version = server.get("valkey_version") or server["redis_version"]
        return {"broker": without_password(self.settings.broker), "server": f"{kind} {version}"}

    def weaknesses(self) -> list[str]:
        with self._explained():
            return weaknesses(self.client)

    # -- waking up --------------------------------------------------------------------------------

    def wake_up(self, queues: Iterable[str], *, inside: bool = False) -> None:
        with suppress(*FAILURES):
            self.client.publish(self.channel, "")

    def open_wake(self) -> RedisWake:
        return RedisWake(connect(self.settings), self.channel)

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        wait_us = self._run("next_due", [])
        return None if wait_us is None else max(0, wait_us) / MICROSECONDS

    def close(self) -> None:
        disconnect(self.client)

    # -- the server -------------------------------------------------------------------------------

    def _run(self, name: str, arguments: Sequence[Any]) -> Any:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.client.register_script(_script(name))
        with self._explained():
            return script(keys=self._keys, args=arguments)

    def _first(self, key: str) -> list[bytes]:
        with self._explained():
            return list(self.client.zrange(key, 0, AT_ONCE - 1))

    def _pages(self, place: str) -> Iterator[list[bytes]]:
        """All ids of a sorted set, as they are found while it changes."""
        key, cursor = f"{self.prefix}:{place}", 0
        while True:
            with self._explained():
                cursor, found = self.client.zscan(key, cursor, count=AT_ONCE)
            if found:
                yield [job_id for job_id, _ in found]
            if not cursor:
                return

    def _packages(self, job_ids: Sequence[bytes]) -> list[bytes]:
        packages: list[bytes] = []
        for some in _batches(list(job_ids)):
            with self._explained():
                packages += [one or b"" for one in self.client.hmget(self._keys[1], some)]
        return packages

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.settings.broker)


@cache
def _script(name: str) -> str:
    folder = files(__package__) / "lua"
    common, own = (folder / f"{one}.lua" for one in ("common", name))
    return common.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


def _lease_id() -> str:
    return f"{new_lease_id():x}"


def _named(lease: Lease) -> list[Any]:
    return [lease.job_id.hex, lease.lease_id]


def _batches(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]


def _loads(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """As many at once as the server takes."""
    start, load_bytes = 0, 0
    for place, message in enumerate(messages):
        load_bytes += len(message.package)
        if place - start >= LOAD_JOBS or (load_bytes > LOAD_BYTES and place > start):
            yield messages[start:place]
            start, load_bytes = place, len(message.package)
    if messages:
        yield messages[start:]


def _deliveries(rows: Iterable[Sequence[Any]]) -> list[Delivery]:
    return [_delivery(row) for row in rows]


def _delivery(row: Sequence[Any]) -> Delivery:
    job_id, package, queue, rank, attempts, crashes, lease_id = row
    return Delivery(
        UUID(job_id.decode()),
        lease_id.decode(),
        package,
        queue.decode(),
        -int(rank),
        int(attempts),
        int(crashes),
    )


def _state(known: Sequence[Any]) -> str:
    if known[4]:
        return "running"
    return "deferred" if known[6] else "ready"
