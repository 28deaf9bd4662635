"""Parse the broker URL ``sqs://REGION/PREFIX?...``, and send requests to the SQS queues of that
prefix."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable

FIFO = ".fifo"
LONGEST_NAME = 80
"""Longest name of an SQS queue, in characters, the suffix ``.fifo`` included."""
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
DIGEST_LENGTH = 10
LEAST_BYTES, MOST_BYTES = 4096, 1 << 20
GROUPS = ("queue", "task", "job")


@dataclass(frozen=True, slots=True)
class Address:
    """The parsed broker URL: region, name prefix and options."""

    region: str | None
    """None: use the region of AWS's own configuration."""
    prefix: str
    endpoint: str | None = None
    """URL of an SQS-compatible server. None: use AWS's own configuration."""
    fifo: bool = False
    """If true, every queue is FIFO. Otherwise only queues whose name ends with ``.fifo`` are."""
    groups: str = "queue"
    """Message group of a job in a FIFO queue: one group per ``queue``, per ``task`` or per
    ``job``."""
    create: bool = True
    """Whether to create a queue that does not exist."""
    max_message_bytes: int = 1 << 18

    def is_fifo(self, queue: str) -> bool:
        return self.fifo or queue.endswith(FIFO)

    def name_of(self, queue: str) -> str:
        """Return the SQS name of a Stoker queue. If the name is too long or contains characters
        that SQS does not allow, shorten it and append a digest."""
        end = FIFO if self.is_fifo(queue) else ""
        stem = queue.removesuffix(FIFO)
        room = LONGEST_NAME - len(FIFO) - len(self.prefix) - 1
        if len(stem) > room or not PLAIN.fullmatch(stem):
            digest = sha256(stem.encode()).hexdigest()[:DIGEST_LENGTH]
            plain = re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[: room - DIGEST_LENGTH - 1]
            stem = f"{plain}-{digest}"
        return f"{self.prefix}-{stem}{end}"

    def queue_of(self, name: str) -> str:
        """Return the Stoker queue of an SQS name. This reverses ``name_of``, except that a digest
        cannot be turned back into the original name."""
        stem = name.removeprefix(f"{self.prefix}-")
        return stem.removesuffix(FIFO) if self.fifo else stem


def address_of(settings: Settings) -> Address:
    """Parse the ``BROKER`` setting.

    Raises:
        ConfigurationError: the URL cannot be used; the message says what to write.
    """
    try:
        parts = urlsplit(settings.broker)
        given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        return Address(_region(parts.netloc), _prefix(parts.path), **_options(given))
    except ValueError as error:
        example = "sqs://REGION/PREFIX, say sqs://eu-west-1/shop"
        raise settings.wrong_broker(error, example) from None


def _region(text: str) -> str | None:
    if "@" in text:
        raise ValueError("credentials are taken from AWS's own configuration, not from here")
    if ":" in text:
        raise ValueError("a region has no port; another server is named by endpoint=")
    return text or None


def _prefix(path: str) -> str:
    prefix, longest = path.strip("/") or "stoker", LONGEST_NAME // 2
    if not PLAIN.fullmatch(prefix) or len(prefix) > longest:
        raise ValueError(
            f"{prefix!r} is not a prefix, which has 1 to {longest} letters, digits, hyphens and "
            "underscores"
        )
    return prefix


def _options(given: dict[str, str]) -> dict[str, Any]:
    if unknown := set(given) - set(OPTIONS):
        known = ", ".join(OPTIONS)
        raise ValueError(f"there is no option {min(unknown)!r}, only {known}")
    return {name: OPTIONS[name](name, text) for name, text in given.items()}


def _endpoint(name: str, text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{name} is {text!r}, not a URL that begins with https:// or http://")
    return text


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}, not true or false")
    return text == "true"


def _groups(name: str, text: str) -> str:
    if text not in GROUPS:
        raise ValueError(f"{name} is {text!r}, not one of {', '.join(GROUPS)}")
    return text


def _bytes(name: str, text: str) -> int:
    if not (text.isdecimal() and LEAST_BYTES <= int(text) <= MOST_BYTES):
        raise ValueError(f"{name} is {text!r}, not a number from {LEAST_BYTES} to {MOST_BYTES}")
    return int(text)


OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "endpoint": _endpoint,
    "fifo": _flag,
    "groups": _groups,
    "create": _flag,
    "max_message_bytes": _bytes,
}


T = TypeVar("T")

AT_ONCE = 10
"""Messages per request, which is SQS's limit."""
CONNECTIONS = 10
"""Requests that may run at the same time."""
LONGEST_WAIT_SECONDS = 20
"""Longest wait of a request for a message."""
TRIES = 3
RETENTION_SECONDS = 14 * 86400
"""Longest time that SQS keeps a message. If no cluster runs for longer, messages are lost."""
LEAST_RECEIVES = 10
MISSING = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
MAKING = threading.Lock()
"""Held while a client is created, because boto3's default session is shared by the process and is
not thread-safe."""
ADVICE = {
    "AccessDenied": "Give it the permissions that docs/howto/use-sqs.md lists.",
    "AccessDeniedException": "Give it the permissions that docs/howto/use-sqs.md lists.",
    "InvalidParameterValue": "Is max_message_bytes in BROKER more than the queue allows?",
}


class QueueRefused(BrokerUnavailable):
    """SQS refused a request to one queue. Requests to other queues may succeed."""


class Queues:
    """Requests to the SQS queues of one prefix. Clients are created again after a fork."""

    def __init__(self, settings: Settings) -> None:
        self.address: Address = address_of(settings)
        self.shown = f"sqs://{self.address.region or ''}/{self.address.prefix}"
        """The URL without its options, for messages and screens."""
        self._seconds = settings.database_seconds
        self._clients: dict[int | None, Any] = {}
        """boto3 clients, by the ``wait_seconds`` with which ``_asked`` was called."""
        self._process_id = 0
        self._threads: ThreadPoolExecutor | None = None
        self._threads_of = 0
        """Id of the process that started the threads. After a fork they are started again."""
        self._urls: dict[str, str] = {}
        self._lock = threading.Lock()

    # -- messages ---------------------------------------------------------------------------------

    def send(self, name: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Send up to ten messages. If SQS refuses one, the others are sent nevertheless.

        Raises:
            BrokerUnavailable: all, some or none of the messages may have been sent.
        """
        with self._asked(name) as (client, url):
            answer = client.send_message_batch(QueueUrl=url, Entries=list(entries))
            if failed := answer.get("Failed"):
                code, said = failed[0].get("Code", ""), failed[0].get("Message", "")
                raise BrokerUnavailable(self._explain(code, said, name))

    def receive(
        self, name: str, count: int, *, hidden_seconds: int, wait_seconds: int = 0
    ) -> list[dict[str, Any]]:
        """Receive up to ``count`` messages and hide them from other receivers for
        ``hidden_seconds``.

        The request is not repeated: if the answer is late, the server has already hidden the
        messages of that answer.
        """
        with self._asked(name, LONGEST_WAIT_SECONDS if wait_seconds else 0) as (client, url):
            answer = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=min(wait_seconds, LONGEST_WAIT_SECONDS),
                VisibilityTimeout=hidden_seconds,
                AttributeNames=["MessageGroupId"],
            )
        return list(answer.get("Messages", ()))

    def delete(self, name: str, handles: Sequence[str]) -> None:
        """Delete up to ten messages. SQS ignores receipts that are too old."""
        entries = [
            {"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(handles)
        ]
        with self._asked(name) as (client, url):
            client.delete_message_batch(QueueUrl=url, Entries=entries)

    def hide(self, name: str, handles: Sequence[str], seconds: int) -> set[int]:
        """Hide up to ten messages for ``seconds`` from now. Return the indexes of the messages
        whose receipt is no longer valid."""
        entries = [
            {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for place, handle in enumerate(handles)
        ]
        with self._asked(name) as (client, url):
            answer = client.change_message_visibility_batch(QueueUrl=url, Entries=entries)
        return {int(one["Id"]) for one in answer.get("Failed", ())}

    def together(self, function: Callable[..., T], calls: Sequence[Sequence[Any]]) -> list[T]:
        """Call ``function`` with each of ``calls`` in parallel and return the results. Raise the
        first error after all calls have ended."""
        if len(calls) == 1:  # a web process sends one request at a time and needs no threads
            return [function(*calls[0])]
        return [answer.result() for answer in self.ended(function, calls)]

    def ended(self, function: Callable[..., T], calls: Sequence[Sequence[Any]]) -> list[Future[T]]:
        """Call ``function`` with each of ``calls`` in parallel. Return the futures after all of
        them have ended."""
        answers = [self._start(function, *arguments) for arguments in calls]
        wait(answers)
        return answers

    def _start(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        with self._lock:
            if self._threads is None or self._threads_of != os.getpid():
                self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="stoker-sqs")
                self._threads_of = os.getpid()
            return self._threads.submit(function, *arguments)

    # -- queues -----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the SQS names of all queues with this prefix."""
        with self._asked() as (client, _):
            pages = client.get_paginator("list_queues").paginate(
                QueueNamePrefix=f"{self.address.prefix}-", PaginationConfig={"PageSize": 1000}
            )
            urls = [url for page in pages for url in page.get("QueueUrls", ())]
        found = {str(url).rpartition("/")[2]: str(url) for url in urls}
        self._urls.update(found)
        return sorted(found)

    def count(self, name: str, *kinds: str) -> int:
        """Return the approximate number of messages of the given kinds: "", "Delayed",
        "NotVisible"."""
        told = self._attributes(name)
        return sum(int(told[f"ApproximateNumberOfMessages{kind}"]) for kind in kinds)

    def _attributes(self, name: str) -> dict[str, str]:
        with self._asked(name) as (client, url):
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return dict(answer["Attributes"])

    def ping(self) -> None:
        with self._asked() as (client, _):
            client.list_queues(QueueNamePrefix=f"{self.address.prefix}-", MaxResults=1)

    def weaknesses(self, name: str) -> Iterator[str]:
        """Yield a sentence for each attribute of the queue that may lose jobs."""
        told = self._attributes(name)
        kept_seconds = int(told.get("MessageRetentionPeriod", RETENTION_SECONDS))
        if kept_seconds < RETENTION_SECONDS:
            yield (
                f"SQS drops jobs of {name} that no cluster has fetched for "
                f"{kept_seconds / 86400:g} days. Set its MessageRetentionPeriod to "
                f"{RETENTION_SECONDS}."
            )
        if policy := told.get("RedrivePolicy"):
            count = int(json.loads(policy)["maxReceiveCount"])
            if count < LEAST_RECEIVES:
                yield (
                    f"SQS takes jobs of {name} away that were received {count} times, even if only "
                    "the database was down. Set maxReceiveCount of its RedrivePolicy to "
                    f"{LEAST_RECEIVES} at least, or remove it."
                )
        most = int(told.get("MaximumMessageSize", self.address.max_message_bytes))
        if most < self.address.max_message_bytes:
            yield (
                f"{name} takes messages of {most} bytes at most, and BROKER says "
                f"{self.address.max_message_bytes}. Write ?max_message_bytes={most} there."
            )

    # -- the service ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        with self._lock:
            clients, self._clients = self._clients, {}
            for client in clients.values() if self._process_id == os.getpid() else ():
                client.close()

    @contextmanager
    def _asked(self, name: str = "", wait_seconds: int | None = None) -> Iterator[tuple[Any, str]]:
        """Yield the client, and the URL of the queue if ``name`` is given. Turn SQS's errors into
        BrokerUnavailable.

        Args:
            name: SQS name of the queue.
            wait_seconds: how long the server may wait before it answers. The request is then sent
                once. None: the request is repeated if the server does not answer.
        """
        try:
            client = self._connected(wait_seconds)
            yield client, self._url_of(client, name) if name else ""
        except ClientError as error:
            said = error.response.get("Error", {})
            if _code(error) in MISSING and name:
                self._urls.pop(name, None)
            told = self._explain(_code(error), said.get("Message", str(error)), name)
            raise (QueueRefused if name else BrokerUnavailable)(told) from error
        except BotoCoreError as error:
            raise BrokerUnavailable(self._explain(type(error).__name__, str(error))) from error

    def _connected(self, wait_seconds: int | None) -> Any:
        with self._lock, MAKING:
            if self._process_id != os.getpid():
                self._clients, self._process_id = {}, os.getpid()
            if wait_seconds not in self._clients:
                tries = TRIES if wait_seconds is None else 1
                seconds = self._seconds / tries
                self._clients[wait_seconds] = boto3.client(
                    "sqs",
                    region_name=self.address.region,
                    endpoint_url=self.address.endpoint,
                    config=Config(
                        connect_timeout=seconds,
                        read_timeout=seconds + (wait_seconds or 0),
                        # A message that is sent twice is the same job: the store recognises its id.
                        retries={"mode": "standard", "total_max_attempts": tries},
                        max_pool_connections=CONNECTIONS,
                        user_agent_extra="stoker",
                    ),
                )
            return self._clients[wait_seconds]

    def _url_of(self, client: Any, name: str) -> str:
        if name not in self._urls:
            self._urls[name] = self._find_or_make(client, name)
        return self._urls[name]

    def _find_or_make(self, client: Any, name: str) -> str:
        try:
            return str(client.get_queue_url(QueueName=name)["QueueUrl"])
        except ClientError as error:
            if _code(error) not in MISSING or not self.address.create:
                raise
        attributes = {
            "MessageRetentionPeriod": str(RETENTION_SECONDS),
            "MaximumMessageSize": str(self.address.max_message_bytes),
            "ReceiveMessageWaitTimeSeconds": "0",
        }
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        return str(client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def _explain(self, code: str, sentence: str, name: str = "") -> str:
        advice = ADVICE.get(code, "")
        if code in MISSING and not self.address.create:
            advice = "Create it, or remove create=false from BROKER."
        elif code == NoCredentialsError.__name__:
            advice = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the host a role."
        elif code == NoRegionError.__name__:
            advice = "Write it in BROKER: sqs://REGION/PREFIX."
        request = f"the request to {name}" if name else "the request"
        said = sentence.rstrip(".")
        return f"{self.shown} could not process {request}: {said}. {advice}".rstrip()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
