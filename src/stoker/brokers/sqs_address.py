"""What ``sqs://REGION/PREFIX?...`` says, and which SQS queue is meant by a queue of Stoker's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stoker.conf import Settings
from stoker.exceptions import ConfigurationError

FIFO = ".fifo"
LONGEST_NAME = 80
"""Of a queue of SQS's; ``.fifo`` counts."""
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
DIGEST_LENGTH = 10
LEAST_BYTES, MOST_BYTES = 4096, 1 << 20
GROUPS = ("queue", "task", "job")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the queues are, and what they are."""

    region: str | None
    """None = that of AWS's own configuration."""
    prefix: str
    endpoint: str | None = None
    """Another address than AWS's; None = that of AWS's own configuration."""
    fifo: bool = False
    """Whether all queues are FIFO; else those whose name ends with ``.fifo``."""
    groups: str = "queue"
    """What has its order in a FIFO queue: the jobs of the queue, of one task, or none."""
    create: bool = True
    """Whether a queue that is missing is made."""
    max_message_bytes: int = 1 << 18

    def is_fifo(self, queue: str) -> bool:
        return self.fifo or queue.endswith(FIFO)

    def name_of(self, queue: str) -> str:
        """SQS's name of a queue of Stoker's. What it does not allow in a name is left out, and a
        digest takes its place."""
        end = FIFO if self.is_fifo(queue) else ""
        stem = queue.removesuffix(FIFO)
        room = LONGEST_NAME - len(FIFO) - len(self.prefix) - 1
        if len(stem) > room or not PLAIN.fullmatch(stem):
            digest = sha256(stem.encode()).hexdigest()[:DIGEST_LENGTH]
            plain = re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[: room - DIGEST_LENGTH - 1]
            stem = f"{plain}-{digest}"
        return f"{self.prefix}-{stem}{end}"

    def queue_of(self, name: str) -> str:
        """As ``name_of`` would have it the other way round, as far as that can be said."""
        stem = name.removeprefix(f"{self.prefix}-")
        return stem.removesuffix(FIFO) if self.fifo else stem


def address_of(settings: Settings) -> Address:
    """Raises: ConfigurationError, saying what to write."""
    where = f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"]'
    parts = urlsplit(settings.broker)
    try:
        given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        return Address(_region(parts.netloc), _prefix(parts.path), **_options(given))
    except ValueError as error:
        raise ConfigurationError(
            f"{where} cannot be used: {error}. Write sqs://REGION/PREFIX, say sqs://eu-west-1/shop."
        ) from error


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
            f"{prefix!r} is no prefix: that is 1 to {longest} letters, digits, hyphens and "
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
