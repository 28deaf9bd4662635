"""The package of a job, and return values: what they contain, and how they are serialised.

The bytes have the form of ``stoker.jobs.envelope``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings

from stoker.conf import Settings
from stoker.exceptions import PackageTooLarge, UnreadableHere, UnreadablePackage
from stoker.store.engines import LARGE_BYTES, engine_of
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

from .envelope import ContentKind, Envelope

WAS_PICKLED = "The {name} was pickled"
LEAST_INFLATED_BYTES = 64 << 20
INFLATED_TIMES = 64
HEAD_FIELDS = 6
LINKS = ("receives", "each", "hooks", "about", "via")
WITH_LINKS = 6
HOOK_FIELDS = 9
"""Fields of a hook without extras: see ``stoker.workflows.hooks``."""


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
        database: alias of the database that records the jobs; None = there is none.

    Raises:
        ConfigurationError: there is no secret, or it is empty.
    """

    def __init__(
        self,
        secrets: Sequence[str | bytes],
        cluster: str,
        serializer: str = "json",
        compress_above_bytes: int | None = None,
        max_bytes: int = 1 << 20,
        database: str | None = None,
    ) -> None:
        most_inflated_bytes = max(LEAST_INFLATED_BYTES, INFLATED_TIMES * max_bytes)
        self._envelope = Envelope(secrets, cluster, compress_above_bytes, most_inflated_bytes)
        self._pickles = serializer == "pickle"
        self._compresses = compress_above_bytes is not None
        self._max_bytes = max_bytes
        self._database = database
        self.key_ids = self._envelope.key_ids
        """Ids of the keys with which packages can be opened; the first one signs."""

    def seal(self, package: Package, *, is_limited: bool = True) -> bytes:
        """Return the job as signed bytes.

        Args:
            is_limited: False for a job that was promised when another one was enqueued.

        Raises:
            NotSerializable: the message names the argument and says what to pass instead.
            PackageTooLarge: the package would have more than ``max_bytes``.
        """
        serialise = job_as_pickle if self._pickles else job_as_json
        arguments = (list(package.args), package.kwargs, package.metadata)
        body = serialise(package.task, head_of(package), arguments)
        return self.close(package.task, body, version_of(package), is_limited=is_limited)

    def close(
        self, task: str, body: bytes, version: int | None, *, is_limited: bool = True
    ) -> bytes:
        """Return the body of a job of this task as signed bytes.

        Args:
            version: see ``version_of``.
            is_limited: whether ``max_bytes`` applies.

        Raises:
            PackageTooLarge: the package would have more than ``max_bytes``, or the database would
                refuse it. A job at another broker would run, and then could not be recorded.
        """
        data = self._envelope.close(JOB, body, pickled=self._pickles, version=version)
        if is_limited and len(data) > self._max_bytes:
            raise PackageTooLarge(self._too_large(task, len(data)))
        if len(data) >= LARGE_BYTES and self._database is not None:
            engine_of(self._database).refuse_too_large(data)
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
        settings.database,
    )


_sealer = lru_cache(maxsize=64)(Sealer)


def version_of(package: Package) -> int | None:
    """Return the version that the package needs; None = the usual one.

    A cluster that reads only version 2 cannot enqueue a hook with extras, and must not run a
    deferred hook early. It leaves a job of version 3 to a newer cluster.
    """
    hooks = package.options.hooks
    if hooks and any(len(hook) > HOOK_FIELDS for hook in json.loads(hooks)):
        return WITH_HOOK_EXTRAS
    return None


def refuse_other_function(package: Package, args: Sequence[Any]) -> None:
    """Check the new arguments of a job. If it calls a function by its path, the first argument
    describes the call.

    Raises:
        ValueError: the description has changed.
    """
    if package.options.via and tuple(args[:1]) != package.args[:1]:
        raise ValueError(
            "The first argument says which function the job calls, so it cannot be changed."
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


WITH_HOOK_EXTRAS = 3
READERS: dict[int, Callable[[list[Any]], Package]] = {
    1: _read_version_1,
    2: _package,
    WITH_HOOK_EXTRAS: _package,
}
"""Version -> its reader."""

JOB = ContentKind(
    "package", b"\xf5J", oldest=min(READERS), usual=2, newest=max(READERS), is_always_signed=True
)
VALUE = ContentKind("value", b"\xf5V", oldest=1, usual=1, newest=1, is_always_signed=False)
NONE = VALUE.plain + codec.write(None)
"""None as a return value."""
