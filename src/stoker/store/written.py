"""Convert values for database drivers, read the database's clock, and read the SQL files. Leases
and due times use only the database's clock.

PostgreSQL takes many rows as one array for each column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from django.conf import settings
from django.db import connections, models
from django.db.models import Func
from django.db.models.expressions import DatabaseDefault
from django.db.models.functions import Now
from django.db.models.sql import Query
from django.utils import timezone

if TYPE_CHECKING:
    from stoker.models.job import JobColumns, Message
    from stoker.models.unique_key import Taking

    DateTimeField = models.DateTimeField[datetime, datetime]
else:  # Django's fields have no type parameters when they run
    DateTimeField = models.DateTimeField

Packed = TypeVar("Packed", bound=Any)
"""A row or message, by default with an attribute ``package``."""

MICROSECONDS = 1_000_000
NOW_ON_POSTGRESQL = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
# Not UNIX_TIMESTAMP(NOW(6)): it jumps by an hour when summer time ends in the server's zone.
NOW_ON_MYSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
NOW_ON_SQLITE = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


class DatabaseNow(Func):
    """An SQL expression: the server's time when the statement runs, in microseconds since 1970."""

    output_field = models.BigIntegerField()

    def as_postgresql(self, *_: Any, **__: Any) -> tuple[str, tuple[str | int, ...]]:
        return NOW_ON_POSTGRESQL, ()

    def as_mysql(self, *_: Any, **__: Any) -> tuple[str, tuple[str | int, ...]]:
        return NOW_ON_MYSQL, ()

    def as_sqlite(self, *_: Any, **__: Any) -> tuple[str, tuple[str | int, ...]]:
        return NOW_ON_SQLITE, ()


class MomentNow(Now):
    """An SQL expression: the server's time when the statement runs, as the value of a
    DateTimeField.

    ``Now`` is the local time of the session on MariaDB and MySQL, and UTC on SQLite. Django stores
    moments of these databases in a zone that the settings choose.
    """

    def as_mysql(self, compiler: Any, connection: Any, **words: Any) -> tuple[str, Any]:
        template = f"(UTC_TIMESTAMP(6) + INTERVAL {_offset_seconds(connection)} SECOND)"
        return self.as_sql(compiler, connection, template=template, **words)

    def as_sqlite(self, compiler: Any, connection: Any, **words: Any) -> tuple[str, Any]:
        utc, end = super().as_sqlite(compiler, connection, **words)[0], "'NOW')"
        seconds = _offset_seconds(connection)
        return utc.replace(end, f"'NOW', '{seconds} seconds')"), ()


class InsertedAt(DateTimeField):
    """The moment of the INSERT. The value is always written, because the default of the column is
    ``Now``: see ``MomentNow``. For migrations it is a DateTimeField."""

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, options

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        value = super().pre_save(model_instance, add)
        return MomentNow() if isinstance(value, DatabaseDefault) else value


def _offset_seconds(connection: Any) -> int:
    """Return the present difference to UTC of the moments that are stored in a database."""
    offset = datetime.now(_zone(connection)).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


def _zone(connection: Any) -> tzinfo:
    """Return the zone of the moments that are stored in a database without their zone."""
    zone: tzinfo = connection.timezone if settings.USE_TZ else timezone.get_default_timezone()
    return zone


def set_clause(
    model: type[models.Model], values: Mapping[str, Any], connection: Any
) -> tuple[str, list[Any]]:
    """Return the SET clause of an UPDATE of ``narrow``, and its parameters."""
    written, prepared = [], []
    columns = {field.name: field for field in model._meta.concrete_fields}
    for name, value in values.items():
        field = columns[name]
        if isinstance(value, models.F):
            other = columns[value.name]  # type: ignore[attr-defined] # missing in the stubs
            written.append(f"narrow.{field.column} = narrow.{other.column}")
        else:
            written.append(f"narrow.{field.column} = %s")
            prepared.append(field.get_db_prep_save(value, connection))
    return ", ".join(written), prepared


def database_now_us(alias: str) -> int:
    """Return the server's time now, in microseconds since 1970."""
    text, _ = Query(None).get_compiler(alias).compile(DatabaseNow())
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT {text}")
        return int(cursor.fetchone()[0])


def microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def instant_us(seconds: float | None) -> int | None:
    """Convert seconds since 1970 to microseconds, rounded as ``datetime.fromtimestamp`` rounds. So
    a moment that is written and read back stays equal."""
    if seconds is None:
        return None
    fraction, whole = math.modf(seconds)
    return int(whole) * MICROSECONDS + round(fraction * MICROSECONDS)


def instants_us(seconds: Sequence[float]) -> list[int]:
    """Convert many moments like ``instant_us``. Inlined for speed, because each job has two."""
    return [
        (whole := int(one)) * MICROSECONDS + round((one - whole) * MICROSECONDS) for one in seconds
    ]


def statement(name: str, **words: str) -> str:
    """Return the text of ``sql/<name>.sql`` with its placeholders in braces replaced by these
    words."""
    text = _text(name)
    return text.format(**words) if words else text


@cache
def _text(name: str) -> str:
    """Return the text of a SQL file without comments."""
    written = (files(__package__) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    lines = [line for line in written.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines)


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Turn rows into ``width`` columns, as ``unnest`` takes them."""
    return (
        [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
    )


def hexes(keys: Iterable[UUID]) -> str:
    """Return ids as a JSON list in SQLite's text form."""
    return json.dumps([key.hex for key in keys])


def as_uuid(value: UUID | str) -> UUID:
    """Convert an id from the driver. Drivers without UUID support return text."""
    return value if isinstance(value, UUID) else UUID(value)


class Written:
    """Convert values for the driver of a database.

    Args:
        connection: Django's connection to the database.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_uuids = bool(connection.features.has_native_uuid_field)
        self._texts: dict[int, str] = {}
        """Whole seconds -> their text. Rows that are written together mostly share the second."""
        self._last: tuple[float | None, Any] = None, None
        """The moment that was converted last, and the result: a job's rows share one."""

    def id(self, value: UUID) -> UUID | str:
        """Convert an id."""
        return value if self._has_uuids else value.hex

    def moment(self, seconds: float | None) -> Any:
        """Convert a moment, given in seconds since 1970."""
        if seconds != self._last[0]:
            self._last = seconds, None if seconds is None else self.moments([seconds])[0]
        return self._last[1]

    def moments(self, seconds: Sequence[float]) -> list[str]:
        """Convert many moments, given in seconds since 1970, to the driver's text form."""
        texts = self._texts
        parted = [divmod(us, MICROSECONDS) for us in instants_us(seconds)]
        for whole in {whole for whole, _ in parted} - texts.keys():
            naive = datetime.fromtimestamp(whole, _zone(self._connection)).replace(tzinfo=None)
            texts[whole] = str(self._connection.ops.adapt_datetimefield_value(naive))
        return [f"{texts[whole]}.{us:06d}" if us else texts[whole] for whole, us in parted]

    def moments_or_none(self, seconds: Sequence[float | None]) -> list[Any]:
        """Convert many moments, some of which may be None."""
        if None in seconds:
            return [self.moment(one) for one in seconds]
        return self.moments(cast("Sequence[float]", seconds))

    def ids(self, digits: Sequence[str]) -> Sequence[Any]:
        """Convert many ids, given as 32 hexadecimal digits each, for the driver."""
        return [UUID(one) for one in digits] if self._has_uuids else digits

    def data(self, value: bytes | None) -> Any:
        """Convert bytes."""
        return None if value is None else self._connection.Database.Binary(value)


def moment(seconds: float) -> datetime:
    """Convert seconds since 1970 to a value for a DateTimeField, aware or naive as USE_TZ says."""
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def database_moment(alias: str) -> datetime:
    """Return the server's time now as a value for a DateTimeField, see ``moment``."""
    return moment(database_now_us(alias) / MICROSECONDS)


def array_literal(values: Sequence[Any]) -> str:
    """Return the values as the text of a PostgreSQL array, for a parameter with a cast:
    ``%(ids)s::uuid[]``.

    Args:
        values: numbers, or str, bytes or UUID. All have the same type or are None.
    """
    sample = next((value for value in values if value is not None), None)
    write = next((writer for kind, writer in _WRITERS if isinstance(sample, kind)), str)
    if isinstance(sample, str):  # few distinct values, such as names of queues and workers
        written = {value: write(value) for value in set(values) if value is not None}
        items = [written.get(value, "NULL") for value in values]
    else:
        items = ["NULL" if value is None else write(value) for value in values]
    return list_literal(items)


def list_literal(items: Iterable[str]) -> str:
    """Return an array of items that are already in PostgreSQL's text form. Items without commas,
    braces and quotes need no quotes. The text of a JSON object has the same form."""
    return "{" + ",".join(items) + "}"


def _write_text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_bytes(value: bytes) -> str:
    return f'"\\\\x{value.hex()}"'


def _write_uuid(value: UUID) -> str:
    return value.hex


_WRITERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, _write_text),
    (bytes, _write_bytes),
    (UUID, _write_uuid),
)
"""Type -> function that writes one item. Numbers need none."""


def called_arrays(jobs: JobColumns) -> dict[str, str]:
    """Return the parameters of job_ensure.sql. job_add_ended.sql uses them, too."""
    return {
        "id": list_literal(jobs.job_ids),
        "task": array_literal(jobs.tasks),
        "queue": array_literal(jobs.queues),
        "priority": list_literal(map(str, jobs.priorities)),
        "package": array_literal(jobs.packages),
        "enqueued_us": _moments(jobs.enqueued_at),
    }


def ended_arrays(jobs: JobColumns) -> dict[str, str]:
    """Return the parameters of job_finish.sql. job_add_ended.sql uses them, too."""
    values = ["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in jobs.values]
    return {
        "id": list_literal(jobs.job_ids),
        "status": list_literal([status or "NULL" for status in jobs.statuses]),
        "attempts": list_literal(map(str, jobs.attempts)),
        "worker_id": array_literal(jobs.worker_ids),
        "started_us": _moments(jobs.started_at),
        "finished_us": _moments(jobs.finished_at),
        "value": list_literal(values),
        "reason": array_literal(jobs.reasons),
    }


def _moments(moments: Sequence[float | None]) -> str:
    if None in moments:
        return list_literal(["NULL" if one is None else str(instant_us(one)) for one in moments])
    return list_literal(map(str, instants_us(cast("Sequence[float]", moments))))


def parameters_of(job: Message) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "package": job.package,
        "enqueued_us": instant_us(job.enqueued_at),
        "run_after_us": instant_us(job.run_after),
        "due_us": None if job.run_after is None else microseconds(job.run_after),
        "guards": len(job.needs),
    }


def arrays_of(jobs: Sequence[Message]) -> dict[str, Any]:
    rows = [parameters_of(job) for job in jobs]
    return {name: [row[name] for row in rows] for name in rows[0]}


def parts_of(
    rows: Sequence[Packed],
    most: int,
    most_bytes: int,
    size_of: Callable[[Packed], int] = lambda row: len(row.package),
) -> Iterator[list[Packed]]:
    """Split rows into parts for one statement each.

    Args:
        most: maximum number of rows in a part.
        most_bytes: maximum size of the rows in a part. A larger row has its own part.
        size_of: returns the number of bytes of a row: by default, those of its package.
    """
    part: list[Packed] = []
    part_bytes = 0
    for row in rows:
        size = size_of(row)
        if part and (len(part) >= most or part_bytes + size > most_bytes):
            yield part
            part, part_bytes = [], 0
        part.append(row)
        part_bytes += size
    if part:
        yield part


def taking_arrays(takings: Sequence[Taking]) -> dict[str, list[Any]]:
    names = takings[0]._fields
    return dict(zip(names, columns(takings, len(names)), strict=True))


def each_job_once(keyed: Sequence[tuple[Any, ...]]) -> Iterator[Collection[tuple[Any, ...]]]:
    """Yield the rows in groups that contain each job only once. This is a single group unless a job
    occurs with several leases."""
    rest = keyed
    while rest:
        once = {row[0]: row for row in reversed(rest)}
        yield once.values()
        if len(once) == len(rest):
            return
        rest = [row for row in rest if once[row[0]][1] != row[1]]
