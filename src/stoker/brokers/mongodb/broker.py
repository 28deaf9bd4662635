"""MongoDB: one collection with one document per job.

A document's ``state`` is the state of the job. Updates change it only if the document still has the
expected state or lease. The server's clock (``$$NOW``) decides about leases and due times::

    ready     queue, rank (minus the priority), package, bytes (its length), attempts, crashes
    deferred  the same, and due
    running   the same, and lease, holder, until, kept (see ``Broker.kept``)
    over      only the time: a job that was relayed from an outbox, remembered for a day

The broker uses no transactions. If the connection is lost during an enqueue of several jobs, only
some of them may be stored. The caller gets an error and may repeat the call.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pymongo import DeleteMany, UpdateMany
from pymongo.errors import BulkWriteError, PyMongoError

from stoker.brokers.contract import (
    Broker,
    BrokerJob,
    Capabilities,
    ClaimRequest,
    Delivery,
    Lease,
    Return,
)
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.models.job import Message
from stoker.store.wake import NoWake, PipeWake, Wake
from stoker.values.ids import new_lease_id

from .documents import (
    AT_ONCE,
    LONG_AGO,
    Connection,
    as_deliveries,
    as_document,
    batches,
    check_url,
    connect,
    fitting,
    in_seconds,
    queue_name,
    selections,
    without_attempts,
)

SETTLING_SECONDS = 60.0
"""Lease of a job while it is acked or released, so that no rescuer takes it over meanwhile."""
DUPLICATE_KEY = 11000
WAITING = {"$in": ["ready", "deferred"]}
UNFINISHED = {"$in": ["ready", "deferred", "running"]}
LEASED_FIELDS = ["lease", "queue", "rank", "attempts", "crashes"]
OVER = [{"$replaceWith": {"_id": "$_id", "state": "over", "over": "$$NOW"}}]


class MongodbBroker(Broker):
    """Jobs in the collection ``stoker_<cluster>`` of the database that the URL names.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    capabilities = Capabilities(max_payload_bytes=15 * 2**20)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._connection = Connection(settings)
        check_url(settings)

    # -- in ---------------------------------------------------------------------------------------

    def enqueue(self, messages: Sequence[Message]) -> None:
        self._insert([as_document(message) for message in messages])

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        self._insert([as_document(message) | {"relayed": True} for message in messages])

    def _insert(self, documents: list[dict[str, Any]]) -> None:
        if not documents:
            return
        with self._asked() as jobs:
            try:
                jobs.insert_many(documents, ordered=False)
            except BulkWriteError as error:
                wrong = error.details["writeErrors"] + error.details["writeConcernErrors"]
                if any(one["code"] != DUPLICATE_KEY for one in wrong):
                    raise

    # -- out --------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        queues, passed_over, limit = request.queues, request.passed_over, request.limit
        line: dict[str, Any] = {"state": "ready"}
        if queues or passed_over:
            line["queue"] = {"$in": list(queues)} if queues else {"$nin": list(passed_over)}
        if queues and passed_over:
            line["queue"]["$nin"] = list(passed_over)
        found: list[Any] = []
        with self._asked() as jobs:
            if limit > 0:
                self._make_due_ready(jobs)
            is_full = False
            while len(found) < limit and not is_full:
                room = limit - len(found)
                first = jobs.find(line, {"bytes": 1, "attempts": 1})
                there = list(first.sort([("rank", 1), ("_id", 1)]).limit(room))
                ids = fitting(there)
                if not ids:
                    break
                if uncounted := without_attempts(there):
                    of_these = {"_id": {"$in": uncounted}, "state": "ready"}
                    jobs.update_many(of_these, {"$set": {"attempts": 0}})
                is_full = len(ids) < len(there)
                found += self._lease(ids, {"state": "ready"}, request)
        return as_deliveries(found)

    def _make_due_ready(self, jobs: Any) -> None:
        """Make some deferred jobs ready, those first that have been due for longest. The next claim
        sees the others, so that a large backlog does not keep a claim past its deadline."""
        due = {"state": "deferred", "due": {"$lte": self._now()}}
        first = jobs.find(due, {"_id": 1}).sort("due", 1).limit(AT_ONCE)
        if ids := sorted((one["_id"] for one in first), key=str):
            change = {"$set": {"state": "ready"}, "$unset": {"due": ""}}
            jobs.update_many({"_id": {"$in": ids}, **due}, change)

    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        if request.limit <= 0:
            return []
        with self._asked() as jobs:
            over = {"state": "running", "until": {"$lt": self._now()}}
            first = jobs.find(over, {"bytes": 1}).sort("until", 1).limit(request.limit)
            ids = fitting(first)
            found = self._lease(ids, over, request) if ids else []
        return as_deliveries(found)

    def clocks(self) -> dict[str, float]:
        with self._asked():
            return {"": self._now().timestamp()}

    def _lease(self, ids: list[UUID], still: dict[str, Any], request: ClaimRequest) -> list[Any]:
        """Lease the jobs that still match ``still``, because another cluster may have claimed
        some of them."""
        lease_id = f"{new_lease_id():x}"
        change: dict[str, Any] = {
            "state": "running",
            "lease": lease_id,
            "holder": request.holder,
            "until": in_seconds(request.lease_seconds),
        }
        if still["state"] == "ready":
            change |= {"attempts": {"$add": ["$attempts", 1]}, "kept": True}
        jobs = self._collection()
        if not jobs.update_many({"_id": {"$in": ids}, **still}, [{"$set": change}]).matched_count:
            return []
        return list(jobs.find({"_id": {"$in": ids}, "lease": lease_id}))

    # -- leases -----------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        distinct = set(leases)
        longer = [{"$set": {"until": in_seconds(lease_seconds)}}]
        changes = [UpdateMany(one, longer) for one in selections(distinct)]
        if not changes:
            return set()
        with self._asked() as jobs:
            if jobs.bulk_write(changes, ordered=False).matched_count == len(distinct):
                return set()
            ids = [lease.job_id for lease in distinct]
            known = {
                Lease(one["_id"], one["lease"])
                for some in batches(ids)
                for one in jobs.find({"_id": {"$in": some}, "state": "running"}, {"lease": 1})
            }
        return distinct - known

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        handed_out = [{"$set": {"kept": False}}]
        with self._asked() as jobs:
            jobs.bulk_write([UpdateMany(one, handed_out) for one in selections(leases)])

    def kept(self, leases: Sequence[Lease]) -> set[UUID]:
        found: set[UUID] = set()
        with self._asked() as jobs:
            for some in batches([lease.job_id for lease in leases]):
                wanted = {"_id": {"$in": some}, "state": "running", "kept": True}
                found |= {one["_id"] for one in jobs.find(wanted, {"_id": 1})}
        return found

    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        leases = [*over, *(back.lease for back in again)]
        stale = self.extend(leases, lease_seconds=SETTLING_SECONDS)
        changes: list[Any] = []
        for one in selections(set(over) - stale):
            changes.append(UpdateMany({**one, "relayed": True}, OVER))
            changes.append(DeleteMany({**one, "relayed": {"$ne": True}}))
        alike: dict[tuple[float, int, int], set[Lease]] = defaultdict(set)
        for back in again:
            alike[max(0.0, back.delay_seconds), back.attempts, back.crashes].add(back.lease)
        for (delay_seconds, attempts, crashes), some in alike.items():
            change: dict[str, Any] = {"state": "ready", "attempts": attempts, "crashes": crashes}
            if delay_seconds:
                change |= {"state": "deferred", "due": in_seconds(delay_seconds)}
            waits: list[dict[str, Any]] = [
                {"$set": change},
                {"$unset": ["lease", "holder", "until", "kept"]},
            ]
            changes += [UpdateMany(one, waits) for one in selections(some - stale)]
        if changes:
            with self._asked() as jobs:
                jobs.bulk_write(changes, ordered=False)
        return stale

    def expire_holder(self, holder: UUID) -> int:
        theirs = {"holder": holder, "state": "running", "until": {"$gt": LONG_AGO}}
        with self._asked() as jobs:
            return int(jobs.update_many(theirs, {"$set": {"until": LONG_AGO}}).matched_count)

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        fields = None if packages else LEASED_FIELDS
        with self._asked() as jobs:
            return as_deliveries(jobs.find({"holder": holder, "state": "running"}, fields))

    # -- looking ----------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        gone: set[UUID] = set()
        with self._asked() as jobs:
            for some in batches(job_ids):
                for one in jobs.find({"_id": {"$in": some}, "state": WAITING}, {"_id": 1}):
                    this = {"_id": one["_id"], "state": WAITING}
                    if self._remove(this):
                        gone.add(one["_id"])
        return gone

    def waiting_in(self, queue: str) -> Iterator[Sequence[UUID]]:
        after: dict[str, Any] = {}
        while True:
            wanted = {"queue": queue, "state": WAITING, **after}
            with self._asked() as jobs:
                found = list(jobs.find(wanted, {"_id": 1}).sort("_id", 1).limit(AT_ONCE))
            if not found:
                return
            yield [one["_id"] for one in found if isinstance(one["_id"], UUID)]
            after = {"_id": {"$gt": found[-1]["_id"]}}

    def _remove(self, wanted: dict[str, Any]) -> int:
        """Remove the matching jobs and return their number. Keep the ids of jobs from an outbox, so
        that these are not added twice."""
        with self._asked() as jobs:
            kept = jobs.update_many({**wanted, "relayed": True}, OVER).matched_count
            return int(kept + jobs.delete_many(wanted).deleted_count)

    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        found: dict[UUID, str] = {}
        with self._asked() as jobs:
            for some in batches(job_ids):
                here = {"_id": {"$in": some}, "state": UNFINISHED}
                found |= {one["_id"]: one["state"] for one in jobs.find(here, {"state": 1})}
        return found

    def jobs(self, job_ids: Sequence[UUID]) -> dict[UUID, BrokerJob]:
        found: dict[UUID, BrokerJob] = {}
        with self._asked() as jobs:
            for some in batches(job_ids):
                for one in jobs.find({"_id": {"$in": some}}, {"package": 1, "due": 1}):
                    package, due = one.get("package"), one.get("due")
                    if isinstance(package, bytes):  # not one that another program has damaged
                        moment = due.timestamp() if isinstance(due, datetime) else None
                        found[one["_id"]] = BrokerJob(package, moment)
        return found

    def sizes(self) -> dict[str, dict[str, int]]:
        each = {"_id": {"queue": "$queue", "state": "$state"}, "count": {"$sum": 1}}
        sizes: dict[str, dict[str, int]] = {}
        with self._asked() as jobs:
            here = {"$match": {"state": UNFINISHED}}
            for one in jobs.aggregate([here, {"$group": each}]):
                none = {"ready": 0, "deferred": 0, "blocked": 0, "running": 0}
                queue = sizes.setdefault(queue_name(one["_id"]), none)
                queue[one["_id"]["state"]] += one["count"]
        return sizes

    def info(self) -> dict[str, Any]:
        with self._asked() as jobs:
            version = jobs.database.client.server_info()["version"]
        where = self.settings.shown_broker
        return {"broker": where, "server": f"MongoDB {version}"}

    # -- waking up --------------------------------------------------------------------------------

    def open_wake(self) -> Wake:
        return open_mongodb_wake(lambda: connect(self.settings))

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        with self._asked() as jobs:
            wanted = {"state": "deferred", "due": {"$gt": LONG_AGO}}
            first = jobs.find_one(wanted, {"due": 1}, sort=[("due", 1)])
            if first is None:
                return None
            due: datetime = first["due"]
            return max(0.0, (due - self._now()).total_seconds())

    # -- the server -------------------------------------------------------------------------------

    def close(self) -> None:
        self._connection.close()

    def _collection(self) -> Any:
        return self._connection.jobs()

    def _now(self) -> datetime:
        """Return the time of the server's clock."""
        now: datetime = self._collection().database.command("hello")["localTime"]
        return now.replace(tzinfo=UTC)

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        try:
            yield self._collection()
        except PyMongoError as error:
            where = self.settings.shown_broker
            raise BrokerUnavailable(f"{where} could not process the request: {error}") from error


RECONNECT_SECONDS = 2.0
WAIT_MS = 500
"""Time-out, at the server, of a request for changes. ``close`` may wait this long."""
CAME = [
    {"$match": {"operationType": {"$in": ["insert", "update", "replace"]}}},
    {"$match": {"fullDocument.state": {"$in": ["ready", "deferred"]}}},
    {"$project": {"_id": 1, "operationType": 1}},
]
"""Filter for changes that make a job ready. It includes updates, because a release is an update,
and leaves out jobs that are leased meanwhile."""


def open_mongodb_wake(connect: Callable[[], tuple[Any, Any]]) -> Wake:
    """Return a wake that listens to the change stream, or ``NoWake`` if the server has no change
    streams.

    Args:
        connect: opens a client and returns it with the collection of jobs.
    """
    wake = MongodbWake(connect)
    if wake.has_streams:
        return wake
    wake.close()
    return NoWake()


class MongodbWake(PipeWake):
    """A thread that listens to the change stream on its own connection and writes to a pipe. While
    the server is away, it connects again and again.

    Args:
        connect: see ``open_mongodb_wake``.
    """

    has_streams = True
    """False once the server has said that it has no change streams."""

    def __init__(self, connect: Callable[[], tuple[Any, Any]]) -> None:
        super().__init__()
        self._connect = connect
        self._client: Any = None
        self._has_tried = threading.Event()
        """Set after the first attempt to listen."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stoker-wake", daemon=True)
        self._thread.start()
        self._has_tried.wait(RECONNECT_SECONDS)

    def close(self) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        if self._client is not None:
            self._client.close()
        self._thread.join()
        super().close()

    def _listen(self) -> None:
        while self.has_streams and not self._is_over.is_set():
            with suppress(PyMongoError):
                self._follow()
            self._has_tried.set()
            self._is_over.wait(RECONNECT_SECONDS)

    def _follow(self) -> None:
        self._client, jobs = self._connect()
        with self._client:
            if "setName" not in self._client.admin.command("hello") and not self._client.is_mongos:
                self.has_streams = False
                return
            options = {"full_document": "updateLookup", "max_await_time_ms": WAIT_MS}
            with jobs.watch(CAME, **options) as changes:
                if self._has_tried.is_set():
                    self.wake()  # jobs may have arrived before this connection
                self._has_tried.set()
                while changes.alive and not self._is_over.is_set():
                    if changes.try_next() is not None:
                        self.wake()
