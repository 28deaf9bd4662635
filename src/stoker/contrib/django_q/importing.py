"""``manage.py stoker import_django_q``: copy waiting jobs, schedules and results from Django Q's
tables.

Those tables are not changed. Each copy and the record of it are one transaction, so the import can
be interrupted and repeated without copying anything twice.
"""

from __future__ import annotations

import base64
import binascii
import io
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from importlib import import_module
from typing import Any

from django.conf import settings
from django.core.management.color import no_style
from django.core.signing import BadSignature, TimestampSigner, b64_decode
from django.db import connections, models, router, transaction
from django.db.migrations.state import ProjectState
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.exceptions import StokerError
from stoker.jobs.package import JobOptions, Package, sealer_for
from stoker.jobs.sealing import hooks_of
from stoker.management.bar import bar
from stoker.management.subcommand import ExitCode, Subcommand, option, refuse
from stoker.models.job import Message
from stoker.tasks.options import as_timestamp, options_of
from stoker.values.ids import LINKED, derived_job_id
from stoker.values.progress import come_so_far

from . import conf
from .calls import call_task
from .models import Imported, Schedule, Task
from .models.schedule import keep_missed
from .models.sealed import Unreadable
from .spec import packed, spec_of
from .tasks import varied

PLAIN = {
    ("builtins", "complex"),
    ("builtins", "frozenset"),
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("uuid", "SafeUUID"),
    ("uuid", "UUID"),
    ("zoneinfo", "ZoneInfo._unpickle"),
}
MOST_BYTES = 64 << 20


class NotReadable(ValueError):
    """Raised if a value must not or cannot be read; the message says why."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PLAIN:
            raise NotReadable(f"it has a {module}.{name}, and was not signed")
        return super().find_class(module, name)


def read_package(payload: str, name: str) -> dict[str, Any]:
    """Return the package of a waiting job.

    Args:
        name: the name in Q_CLUSTER, which salts the signature.

    Raises:
        NotReadable: the signature is wrong, or the package cannot be unpickled here.
    """
    signer = TimestampSigner(
        key=settings.SECRET_KEY, salt=name, fallback_keys=settings.SECRET_KEY_FALLBACKS
    )
    try:
        text = signer.unsign(payload)
    except BadSignature:
        raise NotReadable(
            f"its signature is not that of SECRET_KEY with the name {name!r} of Q_CLUSTER"
        ) from None
    try:
        found = pickle.loads(_inflated(text))  # noqa: S301 - it was signed by this project
    except Exception as error:
        raise NotReadable(f"it cannot be unpickled: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict) or not {"id", "func"} <= found.keys():
        raise NotReadable("it is not a package of Django Q")
    return found


def read_plain(text: str | None) -> Any:
    """Return a stored argument or result.

    Raises:
        NotReadable: it contains values that are not plain Python literals.
    """
    if not text:
        return None
    try:
        return _PlainUnpickler(io.BytesIO(base64.b64decode(text, validate=True))).load()
    except NotReadable:
        raise
    except (binascii.Error, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise NotReadable(f"it cannot be unpickled: {error}") from None
    except Exception as error:
        raise NotReadable(f"it cannot be unpickled: {type(error).__name__}") from error


def _inflated(text: str) -> bytes:
    data = text.encode()
    if data[:1] != b".":
        return b64_decode(data)
    inflater = zlib.decompressobj()
    found = inflater.decompress(b64_decode(data[1:]), MOST_BYTES)
    if inflater.unconsumed_tail:
        raise NotReadable(f"it has more than {MOST_BYTES:,} bytes")
    return found


AT_ONCE = 500


# As the migration makes them: the app with Django Q's label need not be installed.
_made = import_module("stoker.contrib.django_q.history.migrations.0001_initial").Migration
_old = _made("0001_initial", "django_q").mutate_state(ProjectState()).apps
OldTask: Any = _old.get_model("django_q", "Task")
OldSchedule: Any = _old.get_model("django_q", "Schedule")
OldPackage: Any = _old.get_model("django_q", "OrmQ")


def is_there(model: type[models.Model], alias: str) -> bool:
    """Return whether the database has the table of this model."""
    return model._meta.db_table in connections[alias].introspection.table_names()


def rows(model: type[models.Model], alias: str) -> Iterator[dict[str, Any]]:
    """Yield all rows in the order of their ids, as dicts of the existing columns."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        found = connection.introspection.get_table_description(cursor, model._meta.db_table)
    names = {column.name for column in found}
    present = [one.attname for one in model._meta.concrete_fields if one.column in names]
    after: Any = None
    while True:
        later = model._base_manager.using(alias).order_by("pk")
        if after is not None:
            later = later.filter(pk__gt=after)
        part = list(later.values(*present)[:AT_ONCE])
        yield from part
        if len(part) < AT_ONCE:
            return
        after = part[-1]["id"]


SCHEDULE_COLUMNS = (
    "name", "func", "hook", "args", "kwargs", "schedule_type", "minutes", "repeats", "next_run",
    "cron", "cluster", "intended_date_kwarg",
)  # fmt: skip
TASK_COLUMNS = (
    "id", "name", "func", "hook", "group", "cluster", "started", "stopped", "success",
    "attempt_count",
)  # fmt: skip


@dataclass(slots=True)
class Copied:
    """The outcome for one table."""

    table: str
    found: int = 0
    copied: int = 0
    """Number of copied rows; with ``dry_run``, the number of rows that would be copied."""
    known: int = 0
    """Number of rows that were copied before."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason -> number of rows."""
    locked_lately: int = 0
    """Number of copied packages that a cluster of django-q may be running."""


class _Left(Exception):
    """Raised to skip a row; the message says why."""


def source_of(model: type[models.Model]) -> str:
    """Return the database in which Django Q has the rows of this model.

    Only packages are in the database that "orm" names. ``migrate`` also makes the other tables
    there, but they stay empty.
    """
    if model is OldPackage and conf.given().get("orm"):
        return str(conf.given()["orm"])
    return router.db_for_read(model)


def import_tables(alias: str | None, name: str, *, dry_run: bool) -> list[Copied]:
    """Copy schedules, waiting packages, results and failures.

    Args:
        alias: the database with all of Django Q's tables; None = each table is where Django Q has
            its rows.
        name: the name in Q_CLUSTER, with which packages were signed.
        dry_run: roll back every copy.

    Returns:
        The outcome for each existing table.
    """
    steps: tuple[tuple[type[models.Model], Callable[[Mapping[str, Any]], None]], ...] = (
        (OldSchedule, _copy_schedule),
        (OldPackage, lambda row: _copy_package(row, name)),
        (OldTask, _copy_task),
    )
    done = []
    for model, copy in steps:
        source = alias or source_of(model)
        if is_there(model, source):
            report = Copied(model._meta.db_table)
            done.append(report)
            for row in rows(model, source):
                _one(report, row, copy, dry_run=dry_run)
                come_so_far(sum(one.found for one in done))
    _set_sequence()
    return done


def _set_sequence() -> None:
    """Set the sequence of schedule ids above the imported ones."""
    connection = connections[conf.database()]
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), [Schedule]):
            cursor.execute(statement)


def _one(
    report: Copied,
    row: Mapping[str, Any],
    copy: Callable[[Mapping[str, Any]], None],
    *,
    dry_run: bool,
) -> None:
    """Copy one row and record the copy, in one transaction."""
    report.found += 1
    alias = conf.database()
    notes = Imported.objects.using(alias)
    note = {"table": report.table, "key": str(row["id"])}
    if notes.filter(**note).exists():
        report.known += 1
        return
    try:
        with transaction.atomic(using=alias):
            copy(row)
            notes.create(**note)
            if dry_run:
                transaction.set_rollback(True, using=alias)
    except (_Left, StokerError, ValueError, TypeError) as why:
        report.skipped[str(why)] += 1
    else:
        report.copied += 1
        report.locked_lately += _is_locked_lately(row)


def _is_locked_lately(row: Mapping[str, Any]) -> bool:
    """Return whether a cluster of django-q may be running this package.

    Its lock is the time of the claim. That of Django Q 2 is the end of the claim, or the time when
    the package was enqueued.
    """
    lock: datetime | None = row.get("lock")
    return lock is not None and lock > timezone.now() - timedelta(seconds=conf.Conf.RETRY or 0)


def _copy_schedule(row: Mapping[str, Any]) -> None:
    name = row.get("name")
    if name and Schedule.objects.filter(name=name).exists():
        raise _Left("a schedule with that name exists already")
    given = {column: row[column] for column in SCHEDULE_COLUMNS if column in row}
    if not Schedule.objects.filter(pk=row["id"]).exists():
        given["id"] = row["id"]  # the project's foreign keys refer to it
    given["cluster"] = _cluster(given.get("cluster"))
    copied = Schedule(**given)
    copied.save()
    if copied.schedule_type == Schedule.CRON and given.get("next_run") is not None:
        keep_missed(copied, given["next_run"])


def _copy_package(row: Mapping[str, Any], name: str) -> None:
    lock: datetime | None = row["lock"]
    if lock is not None and lock > timezone.now():
        raise _Left(
            "a cluster of Django Q has it, or had it when it failed: stop that cluster, and import "
            "again when its retry time is over"
        )
    package = read_package(row["payload"], name)
    if package.get("iter_count"):
        raise _Left(
            "it is part of an iteration whose other jobs are not here: enqueue the iteration again"
        )
    if package.get("chain"):
        raise _Left(
            f"{package.get('name')} calls {package.get('func')} as a step of a chain whose other "
            "steps are not here: enqueue the chain again"
        )
    _enqueue(package, str(row["key"]))


def _enqueue(package: Mapping[str, Any], key: str) -> None:
    """Enqueue a job for the same call. Its Task keeps the old package's id."""
    settings = conf.settings()
    options = {**package, "task_name": package.get("name"), "cluster": package.get("cluster")}
    spec = {**spec_of(package["func"], options), "id": str(package["id"])}
    arguments = packed(settings, package.get("args") or (), package.get("kwargs") or {})
    queue = _cluster(key) or options["cluster"] or conf.main_queue()
    task = varied(call_task, spec["func"], {**options, "cluster": queue})
    started = package.get("started")
    enqueued_at = as_timestamp(started if isinstance(started, datetime) else timezone.now())
    digest = int.from_bytes(sha256(str(package["id"]).encode()).digest()[:8], "big")
    job_id = derived_job_id(enqueued_at, digest, LINKED)
    limits = options_of(task, settings)
    sealed = sealer_for(settings).seal(
        Package(
            job_id=job_id,
            task=task.module_path,
            args=(spec, arguments),
            kwargs={},
            queue=task.queue_name,
            priority=int(task.priority),
            enqueued_at=enqueued_at,
            options=JobOptions(
                max_attempts=limits.max_attempts,
                max_crashes=limits.max_crashes,
                timeout_seconds=limits.timeout_seconds,
                hooks=hooks_of(settings, task),
                via=task.via,
            ),
        )
    )
    broker_for(settings).deliver(
        [
            Message(
                job_id=job_id,
                task=task.module_path,
                queue=task.queue_name,
                priority=int(task.priority),
                package=sealed,
                enqueued_at=enqueued_at,
            )
        ],
    )


def _copy_task(row: Mapping[str, Any]) -> None:
    given = {column: row[column] for column in TASK_COLUMNS if column in row}
    if Task.objects.filter(pk=given["id"]).exists():
        raise _Left("a task with that id exists already")
    for column in ("args", "kwargs", "result"):
        try:
            given[column] = read_plain(row.get(column))
        except NotReadable as error:
            given[column] = Unreadable(f"(not read: {error})")
    Task.objects.bulk_create([Task(**given)])


def _cluster(name: str | None) -> str | None:
    """Return the name of another queue, or None for the main one, which may be renamed later."""
    return None if not name or name == conf.main_queue() else name


def summary(done: list[Copied], *, dry_run: bool) -> Iterator[str]:
    """Yield lines that describe the outcome."""
    if not done:
        yield "There are no tables of Django Q."
    for report in done:
        word = "would be copied" if dry_run else "copied"
        line = f"{report.table}: {report.found} rows, {report.copied} {word}"
        yield line + (f", {report.known} were before" if report.known else "")
        for why, count in report.skipped.most_common():
            yield f"  {count} not: {why}"
        if report.locked_lately:
            yield (
                f"  {report.locked_lately} of them were enqueued, or claimed by a cluster of "
                f"django-q, in the last {conf.Conf.RETRY} s: such a cluster must not run any more"
            )


class ImportDjangoQ(Subcommand):
    """Copy schedules, waiting jobs and results from the tables of Django Q.

    Copy what Django Q or Django Q 2 has left in its tables: schedules, waiting packages
    (django_q_ormq), results and failures (django_q_task). The tables are only read: nothing is
    changed in them. Stop the clusters of Django Q first. The command exists if
    "stoker.contrib.django_q" is in INSTALLED_APPS.

    A package is unpickled only if its signature is right: that of SECRET_KEY, or of
    SECRET_KEY_FALLBACKS, with the name of Q_CLUSTER. Results were never signed, so only plain
    values are read from them.

    It may be interrupted and called again: copied rows are not copied a second time. Rows that
    cannot be copied are listed with the reason.

    Examples:
      manage.py stoker import_django_q --dry-run     what would be done
      manage.py stoker import_django_q               do it
      manage.py stoker import_django_q --name shop   packages were signed with this name
    """

    name = "import_django_q"
    options = (
        option(
            "--dry-run", action="store_true", help="Only list the rows to copy; change nothing."
        ),
        option(
            "--name",
            metavar="NAME",
            help='The "name" of Q_CLUSTER with which packages were signed. Default: the current '
            "one.",
        ),
        option(
            "--from",
            dest="source",
            metavar="ALIAS",
            help="The database that has all the tables, by its name under DATABASES. Default: "
            'for waiting packages that of "orm" in Q_CLUSTER; for schedules and results the one '
            'that the project\'s database routers name for them, usually "default".',
        ),
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        source = options["source"]
        if source is not None and source not in connections:
            raise refuse(f"DATABASES has no {source!r}: name one of {', '.join(connections)}.")
        name = options["name"] or conf.Conf.PREFIX
        with bar("copying rows"):
            done = import_tables(source, name, dry_run=options["dry_run"])
        for line in summary(done, dry_run=options["dry_run"]):
            self.say(line)
        return ExitCode.DONE
