"""The envelope of a serialised job or value: header, compression, signature.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings

from stoker.conf import Settings
from stoker.exceptions import (
    BadSignature,
    ConfigurationError,
    NewerVersion,
    PackageTooLarge,
    UnreadableHere,
    UnreadablePackage,
)
from stoker.values import codec
from stoker.values.codec import job_as_json, value_as_json
from stoker.values.ids import id_of
from stoker.values.pickles import (
    arguments_of_pickle,
    head_from_pickle,
    job_as_pickle,
    job_from_pickle,
    refuse_to_unpickle,
    told,
    value_as_pickle,
    value_from_pickle,
)

PICKLED, COMPRESSED = 1, 2
HEADER_BYTES, SIGNATURE_BYTES = 4, 32
WRONG_KEY = "The signature of the {name} does not match"
WAS_PICKLED = "The {name} was pickled"


@dataclass(frozen=True, slots=True)
class ContentKind:
    """What an envelope contains: a job or a value."""

    name: str
    magic: bytes
    oldest: int
    """Oldest version that can be read."""
    newest: int
    """Version that is written."""
    is_always_signed: bool
    plain: bytes = field(init=False)
    """Header of content in the newest version that is neither pickled nor compressed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", self.magic + bytes((self.newest, 0)))


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

    def close(self, kind: ContentKind, body: bytes, *, pickled: bool) -> bytes:
        """Return the body with header and signature, in the kind's newest version."""
        flags = PICKLED if pickled else 0
        limit = self._compress_above_bytes
        # A body that is too large to be decompressed again must not be compressed.
        if limit is not None and limit < len(body) <= self._most_inflated_bytes:
            deflated = zlib.compress(body)
            if len(deflated) < len(body):
                body, flags = deflated, flags | COMPRESSED
        header = kind.magic + bytes((kind.newest, flags)) if flags else kind.plain
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
            return kind.newest, False, content[HEADER_BYTES:]
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


LEAST_INFLATED_BYTES = 64 << 20
INFLATED_TIMES = 64
HEAD_FIELDS = 6
LINKS = ("receives", "each", "hooks", "about", "via")
WITH_LINKS = 6


# Not frozen: there is one per job, and creating a frozen object takes several times as long.
@dataclass(slots=True)
class JobOptions:
    """Options that decide how a job is attempted. Part of the signed package."""

    max_attempts: int = 3
    max_crashes: int = 3
    timeout_seconds: float | None = None
    expires_at: float | None = None
    """Seconds since 1970, UTC, after which the job is not started any more."""
    identity: str = ""
    """Signed identity of the logical job, if the job has a unique key. "" = the job has none."""
    receives: str = ""
    """First argument that the worker adds: "value" = the previous step's result; "result" = the
    Result of the job that the step or hook belongs to; "" = none."""
    each: str = ""
    """"map" or "starmap": the only argument is a list of calls."""
    hooks: str = ""
    """Jobs to enqueue when it has ended: see stoker.workflows.hooks."""
    about: str = ""
    """For a hook: the job that it belongs to, as ``stoker.workflows.hooks`` writes it."""
    via: str = ""
    """Dotted path of the task that runs the job, if the package names a plain function that this
    task calls. "": the task named by the package."""


# Not frozen: there is one per job, and creating a frozen object takes several times as long.
@dataclass(slots=True)
class Package:
    """A job's package, opened."""

    job_id: UUID
    task: str
    """Dotted path: module and qualified name of the task, or of the function run ``via`` a task."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    priority: int
    enqueued_at: float
    """Seconds since 1970 on the enqueuing host's clock. Only for screens."""
    options: JobOptions = field(default_factory=JobOptions)
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Data added by integrations and reporters (trace ids, the request's id)."""


class Sealer:
    """Converts packages to signed bytes and back, for one cluster. Thread-safe.

    Args:
        secrets: the signing secret, then older ones that are still accepted.
        cluster: the cluster's name; the salt of the signature.
        serializer: ``"json"`` or ``"pickle"``.
        compress_above_bytes: compress larger bodies; None = never.
        max_bytes: maximum size of a package.

    Raises:
        ConfigurationError: there is no secret, or it is empty.
    """

    def __init__(
        self,
        secrets: Sequence[str | bytes],
        cluster: str,
        *,
        serializer: str = "json",
        compress_above_bytes: int | None = None,
        max_bytes: int = 1 << 20,
    ) -> None:
        most_inflated_bytes = max(LEAST_INFLATED_BYTES, INFLATED_TIMES * max_bytes)
        self._envelope = Envelope(secrets, cluster, compress_above_bytes, most_inflated_bytes)
        self._pickles = serializer == "pickle"
        self._compresses = compress_above_bytes is not None
        self._max_bytes = max_bytes
        self.key_ids = self._envelope.key_ids
        """Ids of the keys with which packages can be opened; the first one signs."""

    def seal(self, package: Package) -> bytes:
        """Return the job as signed bytes.

        Raises:
            NotSerializable: the message names the argument and says what to pass instead.
            PackageTooLarge: the package would have more than ``max_bytes``.
        """
        serialise = job_as_pickle if self._pickles else job_as_json
        arguments = (list(package.args), package.kwargs, package.metadata)
        return self.close(package.task, serialise(package.task, head_of(package), arguments))

    def close(self, task: str, body: bytes) -> bytes:
        """Return the body of a job of this task as signed bytes.

        Raises:
            PackageTooLarge: the package would have more than ``max_bytes``.
        """
        data = self._envelope.close(JOB, body, pickled=self._pickles)
        if len(data) > self._max_bytes:
            raise PackageTooLarge(self._too_large(task, len(data)))
        return data

    def open(self, data: bytes) -> Package:
        """Return the package.

        Raises:
            BadSignature: it was tampered with, or signed with another key or for another cluster.
            NewerVersion: a newer Stoker wrote it.
            UnreadableHere: it needs another SERIALIZER, or an app that is not installed here.
            UnreadablePackage: it is not a package, or this process cannot or must not read it.
        """
        version, is_pickled, body = self._envelope.open(data, JOB)
        if is_pickled:
            self._refuse_pickled(JOB)
            refuse_to_unpickle(JOB.name)
        try:
            return READERS[version](job_from_pickle(body) if is_pickled else codec.read(body))
        except Exception as error:  # unpickling runs the project's code, which may raise anything
            raise _unreadable(error) from error

    def open_without_arguments(self, data: bytes) -> Package:
        """Open a package without its arguments and metadata, for processes that do not run the job.

        Pickled arguments are not unpickled, so no code of the project runs. Raises the same errors
        as ``open``.
        """
        _, is_pickled, body = self._envelope.open(data, JOB)
        if is_pickled:
            self._refuse_pickled(JOB)
        try:
            head = head_from_pickle(body) if is_pickled else codec.read(body)[:HEAD_FIELDS]
            return _package([*head, (), {}, {}])
        except Exception as error:
            raise _unreadable(error) from error

    def pickled_arguments(self, data: bytes) -> bytes:
        """Return the arguments as they are pickled in a package; b"" = it is not pickled.

        Raises the same errors as ``open``.
        """
        _, is_pickled, body = self._envelope.open(data, JOB)
        return arguments_of_pickle(body) if is_pickled else b""

    def seal_value(self, value: Any) -> bytes:
        """Return a return value as bytes. Only pickled values are signed, because reading JSON runs
        no code.

        Raises:
            NotSerializable: the message names the part that cannot be serialised.
        """
        if value is None and not self._pickles:  # what most tasks return
            return NONE
        body = value_as_pickle(value) if self._pickles else value_as_json(value)
        return self._envelope.close(VALUE, body, pickled=self._pickles)

    def open_value(self, data: bytes) -> Any:
        """Open a return value. Raises the same errors as ``open``."""
        _, is_pickled, body = self._envelope.open(data, VALUE)
        if is_pickled:
            self._refuse_pickled(VALUE)
            refuse_to_unpickle(VALUE.name)
        try:
            return value_from_pickle(body) if is_pickled else codec.read(body)
        except Exception as error:
            raise _unreadable(error) from error

    def _refuse_pickled(self, kind: ContentKind) -> None:
        """Raise an error for pickled content, even with a valid signature, if this backend does not
        use pickle."""
        if not self._pickles:
            raise UnreadableHere(
                f'{WAS_PICKLED.format(name=kind.name)}, and with SERIALIZER "json" nothing is '
                'unpickled: set SERIALIZER to "pickle" here, too, or to "json" where jobs are '
                "enqueued."
            )

    def _too_large(self, task: str, size: int) -> str:
        compress = "" if self._compresses else ", set COMPRESS to True"
        return (
            f"The package of {task} has {size:,} bytes, and MAX_PACKAGE_BYTES allows "
            f"{self._max_bytes:,}: store the data and pass its primary key or file name{compress}, "
            "or raise MAX_PACKAGE_BYTES."
        )


def sealer_for(settings: Settings) -> Sealer:
    """Return the sealer of a backend, from its options and Django's SECRET_KEY and
    SECRET_KEY_FALLBACKS."""
    return _sealer(
        (django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS),
        settings.cluster,
        settings.serializer,
        settings.compress_above_bytes,
        settings.max_package_bytes,
    )


@lru_cache(maxsize=64)
def _sealer(
    secrets: tuple[str | bytes, ...],
    cluster: str,
    serializer: str,
    compress_above_bytes: int | None,
    max_bytes: int,
) -> Sealer:
    return Sealer(
        secrets,
        cluster,
        serializer=serializer,
        compress_above_bytes=compress_above_bytes,
        max_bytes=max_bytes,
    )


def head_of(package: Package) -> list[Any]:
    """Return the fields before the arguments, starting with the id."""
    given = package.options
    options: tuple[Any, ...]
    options = (given.max_attempts, given.max_crashes, given.timeout_seconds, given.expires_at)
    if given.receives or given.each or given.hooks or given.about or given.via:
        links = {name: getattr(given, name) for name in LINKS if getattr(given, name)}
        options += (given.identity, links)
    elif given.identity:
        options += (given.identity,)
    return [
        package.job_id.hex,
        package.task,
        package.queue,
        package.priority,
        package.enqueued_at,
        options,
    ]


def _read_version_1(fields: list[Any]) -> Package:
    """Read a package of version 1, which had no metadata."""
    return _package([*fields, {}])


def _package(fields: list[Any]) -> Package:
    job_id, task, queue, priority, enqueued_at, options, args, kwargs, metadata = fields
    return Package(
        id_of(int(job_id, 16)),
        task,
        tuple(args),
        kwargs,
        queue,
        priority,
        enqueued_at,
        JobOptions(*options) if len(options) < WITH_LINKS else _with_links(*options),
        metadata,
    )


def _with_links(*options: Any) -> JobOptions:
    *values, links = options
    return JobOptions(*values, **links)


def _unreadable(error: Exception) -> UnreadablePackage:
    if isinstance(error, codec.UnknownTag):
        return UnreadableHere(
            f"This is a package or value of Stoker's, but it could not be read: {error}. Was an "
            "app removed from INSTALLED_APPS, or does this process run older code?"
        )
    return UnreadablePackage(
        f"This is a package or value of Stoker's, but it could not be read: {told(error)}."
    )


READERS: dict[int, Callable[[list[Any]], Package]] = {1: _read_version_1, 2: _package}
"""Version -> its reader."""

JOB = ContentKind(
    "package", b"\xf5J", oldest=min(READERS), newest=max(READERS), is_always_signed=True
)
VALUE = ContentKind("value", b"\xf5V", oldest=1, newest=1, is_always_signed=False)
NONE = VALUE.plain + codec.write(None)
"""None as a return value."""
