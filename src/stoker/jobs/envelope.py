"""The envelope of a serialised job or value: header, compression, signature.

::

    magic     2 bytes    F5 'J' a job, F5 'V' a value; F5 begins no UTF-8, no pickle, no zlib stream
    version   1 byte     of a job: 3 if a hook has extras (stoker.workflows.hooks), else 2
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

from stoker.exceptions import BadSignature, ConfigurationError, NewerVersion, UnreadablePackage

PICKLED, COMPRESSED = 1, 2
HEADER_BYTES, SIGNATURE_BYTES = 4, 32
WRONG_KEY = "The signature of the {name} does not match"


@dataclass(frozen=True, slots=True)
class ContentKind:
    """What an envelope contains: a job or a value."""

    name: str
    magic: bytes
    oldest: int
    """Oldest version that can be read."""
    usual: int
    """Version that is written if the content does not need a newer one."""
    newest: int
    """Newest version that can be read."""
    is_always_signed: bool
    plain: bytes = field(init=False)
    """Header of content in the usual version that is neither pickled nor compressed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", self.magic + bytes((self.usual, 0)))


class Envelope:
    """Creates and opens envelopes for one cluster.

    Args:
        secrets: the signing secret, then older ones that are still accepted.
        cluster: the cluster's name; the salt of the signature.
        compress_above_bytes: compress larger bodies; None = never.
        most_inflated_bytes: maximum size of a decompressed body.

    Raises:
        ConfigurationError: there is no secret, or it is empty.
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
        self.key_ids = tuple(key.id for key in self._keys)
        self._cluster = cluster
        self._compress_above_bytes = compress_above_bytes
        self._most_inflated_bytes = most_inflated_bytes

    def close(
        self, kind: ContentKind, body: bytes, *, pickled: bool, version: int | None = None
    ) -> bytes:
        """Return the body with header and signature. Without a version, it is the usual one."""
        flags = PICKLED if pickled else 0
        limit = self._compress_above_bytes
        # A body that is too large to be decompressed again must not be compressed.
        if limit is not None and limit < len(body) <= self._most_inflated_bytes:
            deflated = zlib.compress(body)
            if len(deflated) < len(body):
                body, flags = deflated, flags | COMPRESSED
        if flags or version is not None:
            header = kind.magic + bytes((version or kind.usual, flags))
        else:
            header = kind.plain
        content = header + body
        if pickled or kind.is_always_signed:
            return content + self._keys[0].sign(content)
        return content

    def open(self, data: bytes, kind: ContentKind) -> tuple[int, bool, bytes]:
        """Return the version, whether the body is pickled, and the body.

        Raises:
            BadSignature, NewerVersion, UnreadablePackage: the message says what to do.
        """
        if data.startswith(kind.plain):  # nearly always
            content = self._verified(data, kind) if kind.is_always_signed else data
            return kind.usual, False, content[HEADER_BYTES:]
        version, flags = _read_header(data, kind)
        content = data
        if kind.is_always_signed or flags & PICKLED:
            content = self._verified(data, kind)
        if flags & ~(PICKLED | COMPRESSED):
            raise UnreadablePackage(
                f"The flags {flags:#04x} are unknown to this version of Stoker."
            )
        body = content[HEADER_BYTES:]
        if flags & COMPRESSED:
            body = self._inflate(body)
        return version, bool(flags & PICKLED), body

    def _verified(self, data: bytes, kind: ContentKind) -> bytes:
        """Check the signature and return the content before it."""
        content, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
        for key in self._keys:
            if hmac.compare_digest(key.sign(content), signature):
                return content
        raise BadSignature(
            f"{WRONG_KEY.format(name=kind.name)}: it was changed or cut off, or signed with "
            f"another SECRET_KEY or for another CLUSTER than {self._cluster!r}. When a key is "
            "changed, every process needs the new one in SECRET_KEY_FALLBACKS before, and the old "
            "one in SECRET_KEY_FALLBACKS until the queue is empty."
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
    """A signing key for HMAC-SHA256 (RFC 2104). The halves that depend only on the key are computed
    once; for small bodies they are half of the work."""

    def __init__(self, secret: str | bytes, cluster: str) -> None:
        secret = secret.encode() if isinstance(secret, str) else secret
        key = hmac.digest(secret, f"stoker.package:{cluster}".encode(), "sha256")
        block = key.ljust(hashlib.sha256().block_size, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    @property
    def id(self) -> str:
        """Public name of the key. It does not reveal the key."""
        return self.sign(b"the id of this key")[:8].hex()

    def sign(self, content: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.digest()


def _read_header(data: bytes, kind: ContentKind) -> tuple[int, int]:
    """Return version and flags.

    NewerVersion is raised before the signature is verified, because a newer version may be signed
    differently. Nothing of such a package is run.
    """
    if len(data) < HEADER_BYTES:
        raise UnreadablePackage(f"This is not a {kind.name}: it has only {len(data)} bytes.")
    if data[:2] != kind.magic:
        raise UnreadablePackage(f"These bytes are not a {kind.name} of Stoker's.")
    version = data[2]
    if version > kind.newest:
        raise NewerVersion(
            f"The {kind.name} was written by a newer version of Stoker: it has version {version}, "
            f"this one reads up to {kind.newest}. Update Stoker here, or let an updated cluster "
            "run it."
        )
    if version < kind.oldest:
        raise UnreadablePackage(
            f"The {kind.name} has version {version}, which this Stoker cannot read any more: let a "
            "cluster of the previous version empty the queue, then update."
        )
    return version, data[3]
