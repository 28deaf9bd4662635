"""IronMQ, version 3 of its API.

A message is reserved, and deleted when the store has its job (see ``arrivals``). The reservation id
is IronMQ's fencing token: a release, touch or deletion with an old id is refused.

Queues are named ``stoker-<cluster>-<band>-<queue>``; the band is the sign of the priority.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import httpx

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.models.job import Message
from stoker.store.written import parts_of

from .contract import Capabilities
from .transport import (
    BANDS,
    HEAD_BYTES,
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

AT_ONCE = 100
"""IronMQ's limit of messages per request, in both directions."""
LOAD_BYTES = 1 << 20
"""Approximate limit of bytes per request."""


def escaped(name: str) -> str:
    """Return the name with reserved characters replaced, so that it needs no escapes in a URL.
    ``unescaped`` reverses this."""
    return quote(name, safe="").replace("~", "%7E").replace("%", "~")


def unescaped(name: str) -> str:
    return unquote(name.replace("~", "%"))


def posted(message: Message) -> dict[str, Any]:
    """Return the message as IronMQ's API expects it."""
    what: dict[str, Any] = {"body": b64encode(as_body(message)).decode()}
    if message.run_after is not None:
        delay_seconds = math.ceil(message.run_after - time.time())
        what["delay"] = min(max(0, delay_seconds), LONGEST_DELAY_SECONDS)
    return what


def opened(body: str) -> bytes:
    """Return the bytes of a message's body."""
    try:
        return b64decode(body, validate=True)
    # the package cannot be opened later, and becomes a dead letter that says so
    except (Base64Error, ValueError):
        return body.encode(errors="replace")


BUSY = (429, 502, 503, 504)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
SHORTEST_SECONDS = 0.1
"""Shortest time for the answer to a request, even if the deadline has passed."""
FEWEST_TRIES = 2
"""An idle connection may have been closed by the server, so a request is tried at least twice."""
ADVICE = {
    401: "Check the token in BROKER: ironmq://PROJECT:TOKEN@HOST.",
    404: "Check the project and the host in BROKER: ironmq://PROJECT:TOKEN@HOST.",
}


class IronmqRefusal(BrokerUnavailable):
    """IronMQ answered with an error."""

    status: int = 0


class Service:
    """HTTP requests to one project, ``ironmq://PROJECT:TOKEN@HOST``.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._base_url, self._token, self.shown = _parsed(settings)
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._process_id = 0
        self._deadline = threading.local()

    def ask(
        self, verb: str, path: str, what: Any = None, *, wait_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Send a request and return the answer.

        While IronMQ is busy, the request is repeated with growing pauses for up to
        ``DATABASE_SECONDS``. So a request may be carried out twice.

        Raises:
            IronmqRefusal: IronMQ answered with an error.
            BrokerUnavailable: IronMQ did not answer, or is still busy.
        """
        until = self._until()
        pause, tries = FIRST_PAUSE_SECONDS, 0
        while True:
            tries += 1
            failure: Exception
            left = max(SHORTEST_SECONDS, until - time.monotonic())
            try:
                timeout = httpx.Timeout(left, read=left + wait_seconds)
                return self._answer(verb, path, what, timeout)
            except IronmqRefusal as refusal:
                if refusal.status not in BUSY:
                    raise
                failure = refusal
            except httpx.TimeoutException as error:
                raise self._explained(type(error).__name__) from error
            except httpx.HTTPError as error:
                failure = self._explained(str(error) or type(error).__name__)
                failure.__cause__ = error
                if tries < FEWEST_TRIES:
                    continue
            pause_seconds = pause * random.uniform(0.5, 1.0)  # noqa: S311 - to spread the retries
            if time.monotonic() + pause_seconds > until:
                raise failure
            time.sleep(pause_seconds)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the connection. The next request connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._process_id == os.getpid():
            client.close()

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Let the requests of this thread in this block together take ``DATABASE_SECONDS``."""
        self._deadline.until = self._until()
        try:
            yield
        finally:
            del self._deadline.until

    def _until(self) -> float:
        """Return the deadline of a request that begins now, in monotonic seconds."""
        until: float | None = getattr(self._deadline, "until", None)
        return time.monotonic() + self._settings.database_seconds if until is None else until

    def _answer(self, verb: str, path: str, what: Any, timeout: httpx.Timeout) -> dict[str, Any]:
        url = f"{self._base_url}/{path}"
        answer = self._connected().request(verb, url, json=what, timeout=timeout)
        try:
            told = answer.json()
        except ValueError:
            told = {}
        told = told if isinstance(told, dict) else {}
        if answer.is_success:
            return told
        said = f"{answer.status_code} {told.get('msg', answer.reason_phrase)}".strip()
        refusal = IronmqRefusal(str(self._explained(said, ADVICE.get(answer.status_code))))
        refusal.status = answer.status_code
        raise refusal

    def _connected(self) -> httpx.Client:
        with self._lock:
            if self._client is None or self._process_id != os.getpid():
                headers = {"Authorization": f"OAuth {self._token}", "User-Agent": "stoker"}
                # Certificates are read only if they are needed: it takes 20 ms.
                is_secure = self._base_url.startswith("https:")
                self._client = httpx.Client(headers=headers, trust_env=False, verify=is_secure)
                self._process_id = os.getpid()
            return self._client

    def _explained(self, said: str, advice: str | None = None) -> BrokerUnavailable:
        sentence = f"{self.shown} could not process the request: {said.rstrip('.')}."
        return BrokerUnavailable(f"{sentence} {advice}" if advice else sentence)


def _parsed(settings: Settings) -> tuple[str, str, str]:
    try:
        parts = urlsplit(settings.broker)
        _demand(bool(parts.hostname and parts.username and parts.password), "something is missing")
        shown = f"ironmq://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        tls = given.pop("tls", "true")
        _demand(not given, f"there is no option {min(given, default='')!r}, only tls")
        _demand(tls in ("true", "false"), f"tls is {tls!r}, not true or false")
        project = quote(unquote(parts.username or ""), safe="")
    except ValueError as error:
        example = "ironmq://PROJECT:TOKEN@HOST, say with the host mq-aws-us-east-1-1.iron.io"
        raise settings.wrong_broker(error, example) from None
    scheme = "https" if tls == "true" else "http"
    host = parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}/3/projects/{project}", unquote(parts.password or ""), shown


def _demand(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ValueError(otherwise)


@contextmanager
def unless_status(*statuses: int) -> Iterator[None]:
    """Ignore refusals with these statuses."""
    try:
        yield
    except IronmqRefusal as refusal:
        if refusal.status not in statuses:
            raise


MESSAGE_BYTES = 64 << 10
"""IronMQ's limit of bytes per message on every plan."""
KEPT_SECONDS = 30 * 86_400
"""Longest time that IronMQ keeps a message."""
LONGEST_DELAY_SECONDS = 86_400.0
LINES_SECONDS = 2.0
"""How long a list of queue names is used."""
LONGEST_WAIT_SECONDS = 30
SHORTEST_RESERVATION_SECONDS = 30.0
GONE = (403, 404)
"""Statuses for a reservation that has ended, or a message or queue that does not exist."""


class Reservation(NamedTuple):
    """Identifies a reserved message, to touch, release or delete it."""

    line: Line
    message_id: str
    reservation_id: str


class IronmqTransport(Transport):
    """Send and receive messages through the queues of one IronMQ project.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    capabilities = Capabilities(
        priority=False,
        look_up=False,
        max_payload_bytes=MESSAGE_BYTES * 3 // 4 - HEAD_BYTES,
        max_delay_seconds=LONGEST_DELAY_SECONDS,
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
            for load in parts_of(some, AT_ONCE, LOAD_BYTES, lambda one: len(one["body"])):
                self._service.ask("POST", self._path(line, "messages"), {"messages": load})

    def _make(self, line: Line) -> None:
        """Create the queue if it does not exist. A queue that IronMQ creates itself on the first
        message keeps messages only for a week."""
        if line in self._made:
            return
        kept = {"message_timeout": round(self.parcel_seconds), "message_expiration": KEPT_SECONDS}
        try:
            self._service.ask("GET", self._path(line))
        except IronmqRefusal as refusal:
            if refusal.status not in GONE:
                raise
            self._service.ask("PUT", self._path(line), {"queue": kept})
        self._made.add(line)

    # -- out --------------------------------------------------------------------------------------

    def receive(
        self, queues: Sequence[str], limit: int, *, wait_seconds: float = 0.0
    ) -> list[Parcel]:
        """Reserve messages with one request per queue. If several queues are empty, wait in only
        one of them per call."""
        self._turn += 1
        with self._service.deadline():
            lines = list(in_turn(self._wanted(queues), self._turn))
            parcels = self._receive(lines, limit)
        if not parcels and wait_seconds and limit > 0:
            if not lines:
                time.sleep(wait_seconds)
                return []
            waits_at = lines[self._turn % len(lines)]
            wait = min(math.ceil(wait_seconds / len(lines)), LONGEST_WAIT_SECONDS)
            parcels = self._reserve(waits_at, min(limit, AT_ONCE), wait)
        return parcels

    def _receive(self, lines: Sequence[Line], limit: int) -> list[Parcel]:
        parcels: list[Parcel] = []
        try:
            for line in lines:
                while len(parcels) < limit:
                    wanted = min(limit - len(parcels), AT_ONCE)
                    found = self._reserve(line, wanted)
                    parcels += found
                    if len(found) < wanted:
                        break
        except BrokerUnavailable:
            if not parcels:  # otherwise the reserved messages would be hidden for a while
                raise
        return parcels

    def _reserve(self, line: Line, count: int, wait_seconds: int = 0) -> list[Parcel]:
        wanted = {"n": count, "timeout": round(self.parcel_seconds), "wait": wait_seconds}
        try:
            answer = self._service.ask(
                "POST", self._path(line, "reservations"), wanted, wait_seconds=wait_seconds
            )
        except IronmqRefusal as refusal:
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

    def extend(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        held = []
        with self._service.deadline():
            for parcel in parcels:
                with unless_status(*GONE):
                    old = parcel.receipt
                    answer = self._about(old, "touch", timeout=round(self.parcel_seconds))
                    new_id = str(answer.get("reservation_id", old.reservation_id))
                    held.append(Parcel(parcel.message, old._replace(reservation_id=new_id)))
        return held

    def drop(self, parcels: Sequence[Parcel]) -> None:
        by_line: dict[Line, list[Reservation]] = defaultdict(list)
        for parcel in parcels:
            by_line[parcel.receipt.line].append(parcel.receipt)
        with self._service.deadline():
            for line, receipts in by_line.items():
                for start in range(0, len(receipts), AT_ONCE):
                    self._delete(line, receipts[start : start + AT_ONCE])

    def _delete(self, line: Line, receipts: Sequence[Reservation]) -> None:
        ids = [{"id": one.message_id, "reservation_id": one.reservation_id} for one in receipts]
        try:
            self._service.ask("DELETE", self._path(line, "messages"), {"ids": ids})
        except IronmqRefusal as refusal:
            if refusal.status not in GONE:
                raise
            # another cluster has reserved one of them: delete the others one by one
            for one in receipts:
                with unless_status(*GONE):
                    path = self._path(line, "messages", one.message_id)
                    self._service.ask("DELETE", path, {"reservation_id": one.reservation_id})

    def release(self, parcels: Sequence[Parcel]) -> None:
        with suppress(BrokerUnavailable), self._service.deadline():
            for parcel in parcels:
                with suppress(IronmqRefusal):
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
            size = self._size(line)
            with unless_status(404):
                self._service.ask("DELETE", self._path(line, "messages"), {})
                removed += size
        return removed

    def _size(self, line: Line) -> int:
        return int(self._about_line(line).get("size", 0))

    def _about_line(self, line: Line) -> dict[str, Any]:
        about: dict[str, Any] = {}
        with unless_status(*GONE):
            about |= self._service.ask("GET", self._path(line)).get("queue", {})
        return about

    def ping(self) -> None:
        self._service.ask("GET", "queues?per_page=1")

    def info(self) -> dict[str, Any]:
        self.ping()
        return {"broker": self._service.shown, "server": "IronMQ 3"}

    def weaknesses(self) -> list[str]:
        found = warnings_of_name(self.settings.cluster, "-")
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
                    "times, even if only the database was down. Remove its dead_letter."
                )
        return found

    def close(self) -> None:
        self._service.close()

    # -- queues -----------------------------------------------------------------------------------

    def _wanted(self, queues: Sequence[str]) -> list[Line]:
        if time.monotonic() >= self._lines_until:
            self._lines = self._listed()
            self._lines_until = time.monotonic() + LINES_SECONDS
        known = self._lines | self._made
        return [line for line in known if not queues or line.queue in queues]

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
