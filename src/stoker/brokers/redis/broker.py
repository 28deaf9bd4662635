"""Redis and Valkey: a single server, Sentinel or Redis Cluster.

Each step is one Lua script, so it happens completely or not at all. The server's clock decides
about leases and delays. If a reply is lost, the step can be repeated: the holder finds the jobs
that its claim leased, and relays and settlements have no effect the second time. ``lua/common.lua``
lists the keys. All keys have the same hash tag, so that a Redis cluster keeps them in one slot;
``slots.py`` spreads queues over several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from hashlib import sha1
from importlib.resources import files
from itertools import chain, groupby
from typing import Any
from uuid import UUID

from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError, ResponseError

from stoker.brokers.contract import (
    Broker,
    BrokerJob,
    Capabilities,
    ClaimRequest,
    Delivery,
    Lease,
    Leases,
    Return,
    Unrecorded,
    seconds_until,
)
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.models import Job
from stoker.models.job import JobColumns, Message
from stoker.signals import tell
from stoker.store.written import MICROSECONDS, microseconds, parts_of
from stoker.values.ids import new_lease_id

from .connection import (
    FAILURES,
    SentCommand,
    ServerClock,
    about,
    connect,
    disconnect,
    disconnect_idle,
    explained,
    weaknesses,
)
from .forms import (
    decoded,
    deliveries,
    delivery,
    due_after,
    encoded,
    leasing,
    limits,
    named,
    result_loads,
    state,
    waiting_values,
)
from .wake import RedisWake

KEYS = ("job", "package", "deferred", "leases", "queues", "relayed")


class RedisBroker(Broker):
    """Jobs in Redis, under keys that begin with the cluster's prefix.

    Args:
        settings: of the backend.
        first: the first slot, if this is another one. Slots share its client and its channel.
        slot: the number of this slot.
    """

    capabilities = Capabilities(results=True)

    def __init__(self, settings: Settings, first: RedisBroker | None = None, slot: int = 0) -> None:
        super().__init__(settings)
        self._first_slot = first
        self._lease_suffix = f".{slot}" if slot else ""
        self._keeps_results = settings.keeps_successes and settings.results == "redis"
        self.prefix = f"{{stoker:{settings.cluster}{f':slot-{slot}' if slot else ''}}}"
        self._keys = [f"{self.prefix}:{name}" for name in KEYS]
        self.channel: str = first.channel if first else f"{self.prefix}:wake"
        # no node of a Redis cluster answers yet: the next call connects
        with suppress(BrokerUnavailable):
            _ = self.client
        self._clock = ServerClock(lambda: int(self._run("now", [])))
        self._next_due_at: float | None = None
        """Monotonic time in seconds of the next deferred job, as the last claim has read it.
        Infinity: there is none. None: unknown."""
        self._unanswered: set[Lease] = set()
        """Leases of ``finish`` calls that may have been carried out, though they failed."""
        self._unread: set[str] = set()
        """Queues of which a claim has told that it could not read them."""

    @property
    def client(self) -> Any:
        """Return the client of this process.

        Raises:
            BrokerUnavailable: no node of a Redis cluster answers.
        """
        return self._first_slot.client if self._first_slot else self._own_client

    @cached_property
    def _own_client(self) -> Any:
        return connect(self.settings)

    @property
    def known_client(self) -> Any:
        """Return the client, or None if it has yet to be connected."""
        return vars(self._first_slot or self).get("_own_client")

    # -- in ---------------------------------------------------------------------------------------

    def enqueue(self, messages: Sequence[Message]) -> None:
        """Enqueue the messages in loads of up to ``LOAD_JOBS`` jobs. Each load is added completely
        or not at all."""
        self._enqueue(messages)

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        self._enqueue(messages, REMEMBERED_SECONDS, until)

    def relay_until(self) -> float:
        return self.now() + RELAY_SECONDS

    def relayed(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Return the jobs that are here, or that were relayed and are remembered."""
        found = set(self.states(job_ids))
        for some in batches(job_ids):
            with self._explained(), self.client.pipeline(transaction=False) as pipeline:
                for one in some:
                    pipeline.zscore(self._keys[5], one.hex)
                scores = pipeline.execute()
            found |= {one for one, score in zip(some, scores, strict=True) if score is not None}
        return found

    def relayed_for_good(self, job_ids: Sequence[UUID]) -> None:
        with suppress(BrokerUnavailable):
            self.forget_later(job_ids)

    def forget_later(self, job_ids: Sequence[UUID]) -> None:
        """Set when to forget the ids of relayed jobs whose outbox rows are gone."""
        with self._explained():
            for some in batches([job_id.hex for job_id in job_ids]):
                forget_us = microseconds(self._clock.now() + LATE_SECONDS)
                self.client.zadd(self._keys[5], dict.fromkeys(some, forget_us), xx=True)

    def _enqueue(
        self, messages: Sequence[Message], remember_seconds: float = 0.0, until: float = 0.0
    ) -> None:
        for some in parts_of(messages, LOAD_JOBS, LOAD_BYTES):
            limits = map(microseconds, (remember_seconds, until))
            runs = [[*values, len(list(run))] for values, run in groupby(some, waiting_values)]
            ids = "".join([one.job_id.hex for one in some])
            packages = [one.package for one in some]
            arguments = [self.channel, *limits, json.dumps(runs), ids, *packages]
            lines = [f"{self.prefix}:ready:{queue}" for queue in {run[0] for run in runs}]
            if self._run("enqueue", arguments, lines) < 0:
                self._clock.ask_again()
                raise BrokerUnavailable(TOO_LATE)

    # -- out --------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        lease_id = self._lease_id()
        arguments = [*leasing(request, lease_id), len(request.queues), *request.queues]
        answer = self._run("claim", [*arguments, *request.passed_over])
        self._next_due_at = None
        if isinstance(answer, int):
            self._next_due_at = due_after(answer)
            self._unread.clear()
            return []
        self._tell_unread(answer[1])
        return deliveries(answer, lease_id)

    def _tell_unread(self, runs: bytes) -> None:
        """Log the queues that a claim could not read, once for each."""
        if b",0]" not in runs:  # nearly always
            return
        unread = {run[0] for run in json.loads(runs) if not run[4]}
        for queue in sorted(unread - self._unread):
            tell("queue_unreadable", queue=queue, key=f"{self.prefix}:ready:{queue}")
        self._unread |= unread

    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        lease_id = self._lease_id()
        return deliveries(self._run("claim_expired", leasing(request, lease_id)), lease_id)

    def clocks(self) -> dict[str, float]:
        return {self.prefix: int(self._run("now", [])) / MICROSECONDS}

    def _lease_id(self) -> str:
        return f"{new_lease_id():x}{self._lease_suffix}"

    # -- leases -----------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        if not leases:
            return set()
        arguments = [microseconds(lease_seconds), named(leases)]
        return {leases[place] for place in self._run("extend", arguments)}

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        self._run("hand_out", [named(leases)])

    def kept(self, leases: Sequence[Lease]) -> set[UUID]:
        found = set()
        for some in batches([lease.job_id for lease in leases]):
            known = self._run("look", [job_id.hex for job_id in some])
            found |= {job_id for job_id, one in zip(some, known, strict=True) if one and one[6]}
        return found

    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        leases = [*over, *(back.lease for back in again)] if again else over
        arguments: list[Any] = [len(over), named(leases)]
        for back in again:
            arguments += [microseconds(back.delay_seconds), back.attempts, back.crashes]
        if not leases:
            return set()
        stale = {leases[place] for place in self._run("settle", arguments)}
        if any(back.delay_seconds <= 0 for back in again):
            self.wake_up(())
        return stale

    def begin_settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> Callable[[], object]:
        if again or isinstance(self.client, RedisCluster):  # a cluster has a pool for each node
            return super().begin_settle(over, again, failed=failed)
        with self._explained():
            arguments = [len(self._keys), *self._keys, len(over), named(over)]
            sent = SentCommand(self.client, "EVALSHA", _script("settle")[1], *arguments)

        def end() -> None:
            try:
                sent.reply()
            except FAILURES:  # it may have been carried out: then the repetition changes nothing
                self.settle(over)

        return end

    def finish(self, jobs: JobColumns, leases: Leases) -> Unrecorded:
        results = encoded(jobs, leases.lease_ids) if self._keeps_results else []
        unrecorded = Unrecorded(set(), set())
        for start, stop in result_loads(results, len(leases)):
            part = leases if stop - start == len(leases) else leases.take(range(start, stop))
            some = self._finish(part, results[start:stop])
            unrecorded.stale.update(some.stale)
            unrecorded.returned.update(some.returned)
        return unrecorded

    def _finish(self, leases: Leases, results: Sequence[bytes]) -> Unrecorded:
        """Record successes in one call. A job without a record has been finished: by an earlier
        call whose answer was lost, or by another cluster."""
        kept = limits(self.settings.keep_results, are_kept=self._keeps_results)
        try:
            stale, returned, absent = self._run("finish", [named(leases), *kept, *results])
        except BrokerUnavailable:
            if len(self._unanswered) < MOST_UNANSWERED:
                self._unanswered.update(leases)
            raise
        over_here = self._unanswered.intersection(leases) if self._unanswered else set()
        self._unanswered -= over_here
        elsewhere = {leases[place] for place in absent} - over_here
        return Unrecorded(
            {leases[place] for place in stale} | elsewhere, {leases[place] for place in returned}
        )

    def results(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        found = {}
        for some in batches(job_ids) if self._keeps_results else ():
            with self._explained():
                kept = self.client.hmget(f"{self.prefix}:results", [one.hex for one in some])
            for job_id, data in zip(some, kept, strict=True):
                if data is not None:
                    with suppress(ValueError):  # damaged by another program: as if it were expired
                        found[job_id] = decoded(job_id, data)
        return found

    def expire_holder(self, holder: UUID) -> int:
        return int(self._run("expire_holder", [holder.hex]))

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        """Return the jobs leased by the holder, with their packages unless the caller needs none:
        only the broker stores them."""
        found = []
        for ids in self._pages("leases"):
            for job_id, known in zip(ids, self._run("look", ids), strict=True):
                if known and known[5] == holder.hex.encode():
                    found.append((job_id, known))
        ids = [job_id for job_id, _ in found]
        contents = self._packages(ids) if packages else [b""] * len(ids)
        return [
            delivery([job_id, package, *known[:5]])
            for (job_id, known), package in zip(found, contents, strict=True)
        ]

    # -- looking ----------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        gone: set[UUID] = set()
        for some in batches([job_id.hex for job_id in job_ids]):
            gone |= {UUID(one.decode()) for one in self._run("withdraw", some)}
        return gone

    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        found = {}
        for some in batches([job_id.hex for job_id in job_ids]):
            for job_id, known in zip(some, self._run("look", some), strict=True):
                if known:
                    found[UUID(job_id)] = state(known)
        return found

    def jobs(self, job_ids: Sequence[UUID]) -> dict[UUID, BrokerJob]:
        found = {}
        for some in batches(job_ids):
            with self._explained(), self.client.pipeline(transaction=False) as pipeline:
                pipeline.hmget(self._keys[1], [one.hex for one in some])
                for one in some:
                    pipeline.zscore(self._keys[2], one.hex)
                packages, *scores = pipeline.execute()
            for job_id, package, due_us in zip(some, packages, scores, strict=True):
                if package:
                    found[job_id] = BrokerJob(package, due_us and due_us / MICROSECONDS)
        return found

    def sizes(self) -> dict[str, dict[str, int]]:
        none = {"ready": 0, "deferred": 0, "blocked": 0, "running": 0}
        sizes: dict[str, dict[str, int]] = {}
        with self._explained():
            names = sorted(self.client.smembers(self._keys[4]))
            for name in names:
                with suppress(ResponseError):  # overwritten by another program
                    ready = self.client.zcard(f"{self.prefix}:ready:".encode() + name)
                    sizes[name.decode()] = none | {"ready": ready}
        for place in ("deferred", "running"):
            cursor: bytes | int = 0
            while True:
                cursor, *counts = self._run("count", [place, cursor, COUNTED_AT_ONCE])
                for queue, count in zip(counts[::2], counts[1::2], strict=True):
                    sizes.setdefault(queue.decode(), none.copy())[place] += count
                if not int(cursor):
                    break
        return {queue: size for queue, size in sizes.items() if any(size.values())}

    def waiting_in(self, queue: str) -> Iterator[Sequence[UUID]]:
        """Yield the deferred jobs first, because they become ready. Leave out damaged jobs, which
        cannot be withdrawn."""
        for ids in chain(self._pages("deferred"), self._pages(f"ready:{queue}")):
            known = zip(ids, self._run("look", ids), strict=True)
            ours = [one for one, what in known if what and what[0].decode() == queue]
            if ours:
                yield [UUID(one.decode()) for one in ours]

    def info(self) -> dict[str, Any]:
        with self._explained():
            server = about(self.client, "server")
        kind = "Valkey" if "valkey_version" in server else "Redis"
        version = server.get("valkey_version") or server.get("redis_version", "")
        return {"broker": self.settings.shown_broker, "server": f"{kind} {version}".strip()}

    def weaknesses(self) -> list[str]:
        with self._explained():
            return weaknesses(self.client)

    # -- waking up --------------------------------------------------------------------------------

    def wake_up(self, queues: Iterable[str]) -> None:
        with suppress(BrokerUnavailable, *FAILURES):
            self.client.publish(self.channel, "")

    def open_wake(self) -> RedisWake:
        hurried = replace(
            self.settings, database_seconds=min(WAKE_SECONDS, self.settings.database_seconds)
        )
        return RedisWake(partial(connect, hurried), self.channel)

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        known, self._next_due_at = self._next_due_at, None
        return seconds_until(due_after(self._run("next_due", [])) if known is None else known)

    def ping(self) -> None:
        """Raise BrokerUnavailable if the server does not answer, or refuses writes."""
        self._run("ping", [])

    def close(self) -> None:
        disconnect(self.known_client)

    def close_idle(self) -> None:
        disconnect_idle(self.known_client)

    def _forget_nodes(self) -> None:
        """Let the next call look for the nodes of a Redis cluster at the hosts of the URL."""
        self.close_idle()
        vars(self._first_slot or self).pop("_own_client", None)

    # -- the server -------------------------------------------------------------------------------

    def now(self) -> float:
        """Return seconds since 1970 on the server's clock."""
        return self._clock.now()

    def note_slots(self, count: int) -> list[int]:
        """Note that this number of slots is in use. Return all numbers that were ever in use."""
        key = f"{self.prefix}:slot_counts"
        with self._explained():
            used = {int(one) for one in self.client.smembers(key)}
            if count not in used:  # a server whose memory is full refuses writes
                self.client.sadd(key, count)
        return sorted({*used, count})

    def _run(self, name: str, arguments: Sequence[Any], more_keys: Sequence[str] = ()) -> Any:
        source, digest = _script(name)
        keys = [*self._keys, *more_keys]
        with self._explained():
            try:
                return self.client.evalsha(digest, len(keys), *keys, *arguments)
            except NoScriptError:
                # SCRIPT LOAD would need all nodes of a Redis cluster.
                return self.client.eval(source, len(keys), *keys, *arguments)

    def _pages(self, place: str) -> Iterator[list[bytes]]:
        """Yield the ids of a sorted set page by page. The set may change meanwhile."""
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
        for some in batches(list(job_ids)):
            with self._explained():
                packages += [one or b"" for one in self.client.hmget(self._keys[1], some)]
        return packages

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.settings, self.close, self._forget_nodes)


@cache
def _script(name: str) -> tuple[str, str]:
    """Return a Lua script, with common.lua, and the SHA1 digest that EVALSHA needs."""
    folder = files(__package__) / "lua"
    common, own = (folder / f"{one}.lua" for one in ("common", name))
    source = common.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


AT_ONCE = 500
COUNTED_AT_ONCE = 2000
RELAY_SECONDS = 60.0
"""How long after an outbox was read its jobs may be added."""
LATE_SECONDS = 600.0
"""How long a job's id is remembered after its outbox row is gone. It is longer than any relay can
be late, and leaves room for a server's clock that is set back."""
TOO_LATE = (
    f"Jobs from the outbox reached Redis more than {RELAY_SECONDS:.0f} seconds after they were "
    "read, and were not added: they will be read again."
)
REMEMBERED_SECONDS = 24 * 3600.0
"""How long a job's id is remembered while its outbox row may still exist, because the relaying
process died."""
WAKE_SECONDS = 4.0
"""How long the pusher waits for a connection on which it is woken. Without it, it polls."""
MOST_UNANSWERED = 100_000
LOAD_JOBS = 100_000
"""Redis accepts a million arguments in one command, and a job has five."""
LOAD_BYTES = 256 << 20


def batches(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split ids into batches for one script call each."""
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]
