"""Messages and names of queues as IronMQ takes them."""

from __future__ import annotations

import math
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

from .base import Message
from .transport import as_body

AT_ONCE = 100
"""The most messages that IronMQ takes or gives in one request."""
LOAD_BYTES = 1 << 20
"""Of messages in one request, about."""


def escaped(name: str) -> str:
    """The same for the same, in characters that need no escape in a URL; it can be read back."""
    return quote(name, safe="").replace("~", "%7E").replace("%", "~")


def unescaped(name: str) -> str:
    return unquote(name.replace("~", "%"))


def posted(message: Message) -> dict[str, Any]:
    """A message as IronMQ takes it."""
    what: dict[str, Any] = {"body": b64encode(as_body(message)).decode()}
    if message.run_after is not None:
        what["delay"] = max(0, math.ceil(message.run_after - time.time()))
    return what


def opened(body: str) -> bytes:
    """What was posted."""
    try:
        return b64decode(body, validate=True)
    except (Base64Error, ValueError):  # it will be a dead letter that says so
        return body.encode(errors="replace")


def loads(some: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    """As many at once as IronMQ takes."""
    start, load_bytes = 0, 0
    for place, one in enumerate(some):
        load_bytes += len(one["body"])
        if place - start >= AT_ONCE or (load_bytes > LOAD_BYTES and place > start):
            yield some[start:place]
            start, load_bytes = place, len(one["body"])
    yield some[start:]
