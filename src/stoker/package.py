"""What travels: a job as bytes, serialised, optionally compressed, always signed.

The bytes are an envelope (envelope.py) around a body (serializers.py). The body of a job:

::

    [job id, task, queue, priority, enqueued_at,
     [max_attempts, max_crashes, timeout_seconds, expires_at, identity, links], args, kwargs,
     metadata]

The identity is there only where it or what follows it is; the links are a dict of ``receives``,
``each``, ``hooks``, ``about`` and ``via``, and there only where one of these is.

Changing it, or the meaning of one of the codec's tags, takes a new version and a reader for the one
before: see ``READERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings

from . import codec
from .conf import Settings
from .envelope import Envelope, Kind
from .exceptions import PackageTooLarge, UnreadablePackage
from .ids import id_of
from .serializers import (
    head_from_pickle,
    job_as_json,
    job_as_pickle,
    job_from_pickle,
    refuse_to_unpickle,
    told,
    value_as_json,
    value_as_pickle,
    value_from_pickle,
)

LEAST_INFLATED_BYTES = 64 << 20
INFLATED_TIMES = 64
HEAD_FIELDS = 6
LINKS = ("receives", "each", "hooks", "about", "via")
WITH_LINKS = 6


# Not frozen, since there is one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class JobOptions:
    """What decides how a job is tried; travels inside the signed package."""

    max_attempts: int = 3
    max_crashes: int = 3
    timeout_seconds: float | None = None
    expires_at: float | None = None
    """Seconds since 1970, UTC, after which the job is not started any more."""
    identity: str = ""
    """The logical job, where its unique key says which; "" = this job is one by itself."""
    receives: str = ""
    """What the worker puts before its arguments: "value", that of the step before it; "result",
    that of the job which the step or hook is about; "" = nothing."""
    each: str = ""
    """"map" or "starmap": the one argument is a list of calls."""
    hooks: str = ""
    """What is to be enqueued when it has ended: see stoker.following.hooks."""
    about: str = ""
    """Of a hook: the job that it is about, see there."""
    via: str = ""
    """Dotted path of the task that runs the job, where the package names a plain function that this
    task calls; "" = the task that the package names."""


# Not frozen, since there is one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Package:
    """One job, opened."""

    job_id: UUID
    task: str
    """Dotted path: module and qualified name of the task, or of the function that it is ``via``."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    priority: int
    enqueued_at: float
    """Seconds since 1970 by the enqueuing host's clock: shown, never decided on."""
    options: JobOptions = field(default_factory=JobOptions)
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What faces and reporters carry across (trace ids, the request's id)."""


class Sealer:
    """Turns packages into signed bytes and back, for one cluster. Safe to share by threads.

    Args:
        secrets: the signing secrets, the current one first, then those that are still accepted.
        cluster: the cluster's name; the signature's salt.
        serializer: ``"json"`` or ``"pickle"``.
        compress_above_bytes: compress a body larger than this; None = never.
        max_bytes: the largest package that may be sealed.

    Raises:
        ConfigurationError: when there is no secret, or an empty one.
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

    def seal(self, package: Package) -> bytes:
        """The job as signed bytes.

        Raises:
            NotSerializable: naming the argument and saying what to pass instead.
            PackageTooLarge: when the bytes would be more than ``max_bytes``.
        """
        serialise = job_as_pickle if self._pickles else job_as_json
        arguments = (list(package.args), package.kwargs, package.metadata)
        return self.close(package.task, serialise(package.task, head_of(package), arguments))

    def close(self, task: str, body: bytes) -> bytes:
        """The body of a job of this task as signed bytes. Raises PackageTooLarge."""
        data = self._envelope.close(JOB, body, pickled=self._pickles)
        if len(data) > self._max_bytes:
            raise PackageTooLarge(self._too_large(task, len(data)))
        return data

    def open(self, data: bytes) -> Package:
        """The job again.

        Raises:
            BadSignature: changed on the way, or signed with another key or for another cluster.
            NewerVersion: written by a newer Stoker.
            UnreadablePackage: not a package, or one that this sealer can't or must not read.
        """
        version, is_pickled, body = self._envelope.open(data, JOB)
        if is_pickled:
            self._refuse_pickled(JOB)
            refuse_to_unpickle(JOB.name)
        try:
            return READERS[version](job_from_pickle(body) if is_pickled else codec.read(body))
        except Exception as error:  # unpickling runs the project's code, which may raise anything
            raise UnreadablePackage(_unreadable(error)) from error

    def open_without_arguments(self, data: bytes) -> Package:
        """The job with neither arguments nor metadata, for processes that don't run it.

        Pickled arguments are not looked at, so no code of the project's runs. Raises as ``open``.
        """
        _, is_pickled, body = self._envelope.open(data, JOB)
        if is_pickled:
            self._refuse_pickled(JOB)
        try:
            head = head_from_pickle(body) if is_pickled else codec.read(body)[:HEAD_FIELDS]
            return _package([*head, (), {}, {}])
        except Exception as error:
            raise UnreadablePackage(_unreadable(error)) from error

    def seal_value(self, value: Any) -> bytes:
        """A return value as bytes; signed only when pickled, since reading JSON runs nothing.

        Raises:
            NotSerializable: saying what in it can't be serialised.
        """
        body = value_as_pickle(value) if self._pickles else value_as_json(value)
        return self._envelope.close(VALUE, body, pickled=self._pickles)

    def open_value(self, data: bytes) -> Any:
        """The value again. Raises as ``open`` does."""
        _, is_pickled, body = self._envelope.open(data, VALUE)
        if is_pickled:
            self._refuse_pickled(VALUE)
            refuse_to_unpickle(VALUE.name)
        try:
            return value_from_pickle(body) if is_pickled else codec.read(body)
        except Exception as error:
            raise UnreadablePackage(_unreadable(error)) from error

    def _refuse_pickled(self, kind: Kind) -> None:
        """Although it was signed, as everything pickled is."""
        if not self._pickles:
            raise UnreadablePackage(
                f'The {kind.name} was pickled, and with SERIALIZER "json" nothing is unpickled: '
                'set SERIALIZER to "pickle" here, too, or to "json" where jobs are enqueued.'
            )

    def _too_large(self, task: str, size: int) -> str:
        compress = "" if self._compresses else ", set COMPRESS to True"
        return (
            f"The package of {task} has {size:,} bytes, and MAX_PACKAGE_BYTES allows "
            f"{self._max_bytes:,}: store the data and pass its primary key or file name{compress}, "
            "or raise MAX_PACKAGE_BYTES."
        )


def sealer_for(settings: Settings) -> Sealer:
    """The sealer of a backend: its options, and Django's SECRET_KEY and SECRET_KEY_FALLBACKS."""
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
    """What comes before the arguments, the id first."""
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
    """Before there was metadata."""
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


def _unreadable(error: Exception) -> str:
    return f"This is a package or value of Stoker's, but could not be read: {told(error)}."


READERS: dict[int, Callable[[list[Any]], Package]] = {1: _read_version_1, 2: _package}
"""Version -> reader: the version that is written and the one before it."""

JOB = Kind("package", b"\xf5J", oldest=min(READERS), newest=max(READERS), is_always_signed=True)
VALUE = Kind("value", b"\xf5V", oldest=1, newest=1, is_always_signed=False)
