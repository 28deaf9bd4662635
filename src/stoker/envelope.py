"""What is around a serialised job or value: header, compression, signature.

::

    magic     2 bytes    F5 'J' a job, F5 'V' a value; F5 begins no UTF-8, no pickle, no zlib stream
    version   1 byte
    flags     1 byte     1 = pickled, not JSON; 2 = compressed (zlib)
    body
    HMAC      32 bytes   SHA-256 of all before; left out of a value that is not pickled

Nothing is decompressed before the signature is verified.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from .exceptions import BadSignature, ConfigurationError, NewerVersion, UnreadablePackage

PICKLED, COMPRESSED = 1, 2
HEADER_BYTES, SIGNATURE_BYTES = 4, 32


@dataclass(frozen=True, slots=True)
class Kind:
    """What can be in an envelope."""

    name: str
    magic: bytes
    oldest: int
    """The first version that is still read."""
    newest: int
    """The version that is written."""
    is_always_signed: bool
    plain: bytes = field(init=False)
    """The header of what is in the newest version, and neither pickled nor compressed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", self.magic + bytes((self.newest, 0)))


class Envelope:
    """Puts bodies into envelopes and takes them out, for one cluster.

    Args:
        secrets: the one to sign with, then those that are still accepted.
        cluster: the cluster's name; the signature's salt.
        compress_above_bytes: compress a body larger than this; None = never.
        most_inflated_bytes: the largest body that is decompressed.

    Raises:
        ConfigurationError: when there is no secret, or an empty one.
    """

    def __init__(
        self,
        secrets: Sequence[str | bytes],
        cluster: str,
        compress_above_bytes: int | None,
        most_inflated_bytes: int,
    ) -> None:
        if not secrets or not all(secrets):
            raise ConfigurationError(
                "SECRET_KEY and each of SECRET_KEY_FALLBACKS must not be empty: packages are "
                "signed with them."
            )
        self._keys = tuple(_Key(secret, cluster) for secret in secrets)
        self._cluster = cluster
        self._compress_above_bytes = compress_above_bytes
        self._most_inflated_bytes = most_inflated_bytes

    def close(self, kind: Kind, body: bytes, *, pickled: bool) -> bytes:
        """The body with everything around it, in the kind's newest version."""
        flags = PICKLED if pickled else 0
        limit = self._compress_above_bytes
        # What is too large to be inflated again must not be deflated in the first place.
        if limit is not None and limit < len(body) <= self._most_inflated_bytes:
            deflated = zlib.compress(body)
            if len(deflated) < len(body):
                body, flags = deflated, flags | COMPRESSED
        header = kind.magic + bytes((kind.newest, flags)) if flags else kind.plain
        content = header + body
        if pickled or kind.is_always_signed:
            return content + self._keys[0].sign(content)
        return content

    def open(self, data: bytes, kind: Kind) -> tuple[int, bool, bytes]:
        """Version, whether it is pickled, body.

        Raises:
            BadSignature, NewerVersion, UnreadablePackage: each saying what to do.
        """
        if data.startswith(kind.plain):  # nearly always
            content = self._verified(data, kind) if kind.is_always_signed else data
            return kind.newest, False, content[HEADER_BYTES:]
        version, flags = _read_header(data, kind)
        content = data
        if kind.is_always_signed or flags & PICKLED:
            content = self._verified(data, kind)
        if flags & ~(PICKLED | COMPRESSED):
            raise UnreadablePackage(f"The flags {flags:#04x} mean nothing to this Stoker.")
        body = content[HEADER_BYTES:]
        if flags & COMPRESSED:
            body = self._inflate(body)
        return version, bool(flags & PICKLED), body

    def _verified(self, data: bytes, kind: Kind) -> bytes:
        """What stands before the signature, when one of the keys made it."""
        content, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
        for key in self._keys:
            if hmac.compare_digest(key.sign(content), signature):
                return content
        raise BadSignature(
            f"The signature of the {kind.name} does not match: it was changed or cut off, or "
            f"signed with another SECRET_KEY or for another CLUSTER than {self._cluster!r}. When a "
            "key is changed, keep the old one in SECRET_KEY_FALLBACKS until the queue is empty."
        )

    def _inflate(self, body: bytes) -> bytes:
        stream = zlib.decompressobj()
        try:
            inflated = stream.decompress(body, self._most_inflated_bytes + 1)
        except zlib.error as error:
            raise UnreadablePackage(f"The body could not be decompressed: {error}.") from error
        if not stream.eof or len(inflated) > self._most_inflated_bytes:
            raise UnreadablePackage(
                "The body is cut off, or has more than the "
                f"{self._most_inflated_bytes:,} bytes that are decompressed here: "
                "pass less in arguments, or raise MAX_PACKAGE_BYTES."
            )
        return inflated


class _Key:
    """A signing key: HMAC-SHA256 (RFC 2104) with the two halves that only depend on the key done
    once. What is signed is small, so those would be half of the work."""

    def __init__(self, secret: str | bytes, cluster: str) -> None:
        secret = secret.encode() if isinstance(secret, str) else secret
        key = hmac.digest(secret, f"stoker.package:{cluster}".encode(), "sha256")
        block = key.ljust(hashlib.sha256().block_size, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def sign(self, content: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.digest()


def _read_header(data: bytes, kind: Kind) -> tuple[int, int]:
    """Version and flags, of which "newer than ours" is believed before the signature: how a newer
    version is signed can't be known, and it is not run anyway."""
    if len(data) < HEADER_BYTES:
        raise UnreadablePackage(f"There is no {kind.name} here, only {len(data)} bytes.")
    if data[:2] != kind.magic:
        raise UnreadablePackage(f"These bytes are not a {kind.name} of Stoker's.")
    version = data[2]
    if version > kind.newest:
        raise NewerVersion(
            f"The {kind.name} was written by a newer Stoker: it has version {version}, this one "
            f"reads up to {kind.newest}. Update Stoker here, or let an updated cluster take it."
        )
    if version < kind.oldest:
        raise UnreadablePackage(
            f"The {kind.name} has version {version}, which is not read any more: let a cluster of "
            "the Stoker before this one empty the queue, then update."
        )
    return version, data[3]
