"""The MongoDB broker's connection, documents and indexes."""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import IndexModel, MongoClient, ReadPreference, WriteConcern
from pymongo.errors import ConfigurationError as WrongOption
from pymongo.errors import InvalidURI
from pymongo.uri_parser import parse_uri

from stoker.brokers.contract import CLAIM_BYTES, Delivery, Lease
from stoker.conf import Settings
from stoker.models.job import Message
from stoker.setting_values import is_queue_name

AT_ONCE = 1000
REMEMBERED_SECONDS = 24 * 3600
"""How long the id of a job that came from an outbox is remembered after the job has ended."""
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_CLAMP,
    unicode_decode_error_handler="replace",
)
"""How documents are read. Times and texts that Python cannot represent raise no error, because they
are in documents that another program has damaged."""
MOST = 2**15 - 1
"""Largest number in a column of the store for priorities and attempts."""
INDEXES = [
    IndexModel([("state", 1), ("queue", 1), ("rank", 1), ("_id", 1)], name="line"),
    IndexModel([("state", 1), ("rank", 1), ("_id", 1)], name="every_line"),
    IndexModel([("state", 1), ("due", 1)], name="due"),
    IndexModel([("state", 1), ("until", 1)], name="until"),
    IndexModel([("holder", 1)], name="holder", sparse=True),
    IndexModel([("over", 1)], name="over", expireAfterSeconds=REMEMBERED_SECONDS),
]


class Connection:
    """The client of this process. It connects on first use, and again after a fork."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Any = None
        self._jobs: Any = None
        self._process_id = 0
        self._has_indexes = False
        self._lock = threading.Lock()

    def jobs(self) -> Any:
        """Return the collection of jobs. Create its indexes on first use, without the lock: while
        the server is away, each thread would wait for the others in turn."""
        with self._lock:
            if self._client is None or self._process_id != os.getpid():
                self._client, self._jobs = connect(self._settings)
                self._process_id, self._has_indexes = os.getpid(), False
            jobs = self._jobs
        if not self._has_indexes:
            jobs.create_indexes(INDEXES)
            self._has_indexes = True
        return jobs

    def close(self) -> None:
        """Close the connection. The next use connects again."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self._process_id == os.getpid():
                client.close()


def connect(settings: Settings) -> tuple[Any, Any]:
    """Return a client, and the collection of jobs. The client connects on first use.

    Raises:
        PyMongoError: old versions of the driver ask DNS here for the hosts of ``mongodb+srv://``.
    """
    limit_ms = max(1, int(settings.database_seconds * 1000))
    client: Any = MongoClient(
        settings.broker,
        connect=False,
        serverSelectionTimeoutMS=limit_ms,
        connectTimeoutMS=limit_ms,
        socketTimeoutMS=limit_ms,
        waitQueueTimeoutMS=limit_ms,
    )
    return client, client.get_default_database("stoker").get_collection(
        f"stoker_{settings.cluster}",
        CODEC,
        ReadPreference.PRIMARY,
        WriteConcern("majority", wtimeout=limit_ms),
    )


def check_url(settings: Settings) -> None:
    """Check the URL, without asking DNS: if DNS is away, the broker is unavailable, and the
    URL is not wrong.

    Raises:
        ConfigurationError: the URL cannot be used.
    """
    address, mark, query = settings.broker.replace("mongodb+srv://", "mongodb://", 1).partition("?")
    if address != settings.broker.partition("?")[0]:  # options for DNS are refused without it
        query = "&".join(one for one in query.split("&") if not one.lower().startswith("srv"))
    try:
        parse_uri(f"{address}{mark}{query}")
    except (InvalidURI, WrongOption, ValueError) as error:
        raise settings.wrong_broker(error, "mongodb://host:27017/database") from None


def as_document(message: Message) -> dict[str, Any]:
    if not isinstance(message.package, bytes):
        raise TypeError(f"A package is bytes, not {message.package!r}.")
    document = {
        "_id": message.job_id,
        "state": "ready",
        "queue": message.queue,
        "rank": -message.priority,
        "package": message.package,
        "bytes": len(message.package),
        "attempts": 0,
        "crashes": 0,
    }
    if message.run_after is not None:
        due = LONG_AGO + timedelta(milliseconds=math.ceil(message.run_after * 1000))
        document |= {"state": "deferred", "due": due}
    return document


def fitting(documents: Iterable[dict[str, Any]]) -> list[UUID]:
    """Return the ids of the first jobs whose packages fit into one claim, and at least one id.

    Args:
        documents: must have ``bytes``, which documents of older versions lack.
    """
    ids: list[UUID] = []
    room_bytes = CLAIM_BYTES
    for one in documents:
        room_bytes -= _number(one.get("bytes"), most=CLAIM_BYTES)
        if ids and room_bytes < 0:
            break
        ids.append(one["_id"])
    return ids


def without_attempts(documents: Iterable[dict[str, Any]]) -> list[Any]:
    """Return the ids of the documents whose ``attempts`` is not a number. Another program has
    damaged them, and an update that adds to it would fail for all documents of a claim."""
    return [one["_id"] for one in documents if not _is_number(one.get("attempts"))]


def in_seconds(seconds: float) -> dict[str, Any]:
    """Return an expression for the time ``seconds`` from now on the server's clock, in whole
    milliseconds."""
    return {"$add": ["$$NOW", math.ceil(seconds * 1000)]}


def selections(leases: Iterable[Lease]) -> list[dict[str, Any]]:
    """Return queries for the jobs that are still leased by these leases.

    The ids are sorted: where a server locks documents, two updates that name the same jobs lock
    them in the same order.
    """
    by_lease: dict[Any, list[UUID]] = defaultdict(list)
    for lease in sorted(leases, key=lambda lease: lease.job_id):
        by_lease[lease.lease_id].append(lease.job_id)
    return [
        {"_id": {"$in": some}, "lease": lease_id, "state": "running"}
        for lease_id, ids in by_lease.items()
        for some in batches(ids)
    ]


def batches(ids: Sequence[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(ids), AT_ONCE):
        yield list(ids[start : start + AT_ONCE])


def as_deliveries(jobs: Iterable[dict[str, Any]]) -> list[Delivery]:
    """Return deliveries, highest priority first, then oldest first.

    A document with missing or wrong fields was written by another program. Such fields get their
    defaults; without a package it becomes a dead letter. A document whose id is not a UUID is
    ignored.
    """
    found = [_as_delivery(job) for job in jobs if isinstance(job["_id"], UUID)]
    return sorted(found, key=lambda one: (-one.priority, one.job_id))


def _as_delivery(job: dict[str, Any]) -> Delivery:
    package = job.get("package")
    return Delivery(
        job["_id"],
        str(job.get("lease", "")),
        package if isinstance(package, bytes) else b"",
        queue_name(job),
        -_number(job.get("rank")),
        _number(job.get("attempts")) or 1,
        _number(job.get("crashes")),
    )


def queue_name(job: dict[str, Any]) -> str:
    """Return the queue of a document, or "" if it has none that the store can hold."""
    queue = job.get("queue")
    return str(queue) if is_queue_name(queue) else ""


def _number(value: Any, most: int = MOST) -> int:
    """Return a number of a document, or 0 if it is none that the store can hold."""
    return int(value) if _is_number(value) and -most <= value <= most else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
