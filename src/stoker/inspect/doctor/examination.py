"""Run all checks of the doctor. This module contains the checks of guards, clusters and the
schema."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import DatabaseError, connections, models
from django.db.models import Count, OuterRef, Subquery

from stoker.brokers.adapters import broker_for, leases_outside
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, PackageError, StokerError
from stoker.guards.sweep import look_after, tidy_keys
from stoker.jobs.backends import backends_with
from stoker.jobs.package import Sealer, sealer_for
from stoker.models import (
    Blocked,
    Claimed,
    DeadLetter,
    GuardKey,
    Job,
    Need,
    Ready,
)
from stoker.models.ready import Place
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explained
from stoker.store.places import WAITING
from stoker.store.statements import deciding, delete_by_key, lock_by_key, update_by_key, with_keys
from stoker.store.unapplied import unapplied_migrations

from .clusters import LostClusters, Outboxes
from .looks import (
    AT_ONCE,
    LOST,
    FindingKind,
    Jobs,
    LeftoverNotes,
    Letters,
    Lines,
    Look,
    Scene,
    StuckSteps,
)

NEEDLESS = FindingKind(
    "needs_without_job",
    "The jobs of these needs have ended or do not exist. In a sequence, all later jobs wait.",
    "they are deleted, and blocked jobs become ready",
)
UNUSED = FindingKind(
    "places_of_nobody",
    "These needs hold a place, but their jobs do not run, so other jobs wait for ever.",
    "the places are freed, and blocked jobs become ready",
)
OVERFULL = FindingKind(
    "locks_held_twice",
    "Jobs of several clusters hold these locks, or several jobs hold these sequences (the ids are "
    "those of their keys).",
)
KEYLESS = FindingKind(
    "blocked_without_key",
    "These jobs are blocked by keys that do not exist: they would never become ready.",
    "they become ready, and are blocked again if necessary",
)
STUCK = FindingKind(
    "blocked_with_room",
    "Jobs are blocked by these keys although there is room and no other job comes first.",
    "blocked jobs become ready",
)
PLACE_FIELDS = Place._fields
A_MOMENT_SECONDS = 1.0


class Needs(Look):
    """Check that needs exist as long as their jobs, and hold places only while these run."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        for page in self.scene.pages(Need, "job_id", "kind", "halts", "holds", "fence"):
            job_ids = {row[1] for row in page}
            alive = Job.objects.using(self.alias).unended(job_ids)
            halting = self._halting({row[1] for row in page if row[3]} - alive)
            gone = [row[0] for row in page if row[1] not in (alive | halting)]
            # The needs are deleted when the end of their job is recorded.
            yield NEEDLESS, self.existing(Need, gone)
            holding = {
                row[0]: row[5]
                for row in page
                if row[4] is not None and row[1] in alive and row[2] != Need.Kind.SEQUENCE
            }
            yield UNUSED, self._unused(holding)
        overfull = self._overfull()
        if overfull:  # one of the jobs was just taken over, and is about to be released
            time.sleep(A_MOMENT_SECONDS)
            still = set(self._overfull())
            overfull = [one for one in overfull if one in still]
        yield OVERFULL, overfull

    def _overfull(self) -> list[UUID | None]:
        """Return keys with too many holders. A lock may have several in one cluster, which starts
        them one after another."""
        held = Need.objects.using(self.alias).filter(holds__isnull=False).order_by()
        clusters = Claimed.objects.filter(pk=OuterRef("job_id")).values("holder")
        locks = held.filter(kind=Need.Kind.LOCK).annotate(cluster=Subquery(clusters))
        sequences = held.filter(kind=Need.Kind.SEQUENCE)
        counts = (
            locks.values_list("holds").annotate(number=Count("cluster", distinct=True)),
            sequences.values_list("holds").annotate(number=Count("pk")),
        )
        return [
            key_id
            for counted in counts
            for key_id in counted.filter(number__gt=1).values_list("holds", flat=True)[:AT_ONCE]
        ]

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        needs = with_keys(Need.objects.using(self.alias), ids)
        key_ids = set(needs.values_list("key_id", flat=True))
        if kind is UNUSED:
            return tidy_keys(self.alias, key_ids, forgets=False)
        with deciding(self.alias):
            rows = lock_by_key(Need.objects.using(self.alias), ids, "id", "job_id", "halts")
            alive = Job.objects.using(self.alias).unended({row.job_id for row in rows})
            alive |= self._halting({row.job_id for row in rows if row.halts} - alive)
            gone = [row.id for row in rows if row.job_id not in alive]
            Need.objects.using(self.alias).remove(gone)
        self.scene.broker.wake_up(look_after(self.alias, key_ids))
        return len(gone)

    def _halting(self, job_ids: Collection[UUID]) -> set[UUID]:
        """Return the failed jobs that halt their sequence until their dead letter is closed or
        requeued."""
        letters = DeadLetter.objects.using(self.alias).unclosed().filter(job_id__in=job_ids)
        return set(letters.values_list("job_id", flat=True)) if job_ids else set()

    def _unused(self, fences: Mapping[UUID, int]) -> list[UUID]:
        """Return the needs that still hold the same place although their job does not run.

        Each attempt has its own fencing number, so an unchanged number means an unchanged place.
        """
        if not fences:
            return []
        needs = with_keys(Need.objects.using(self.alias), fences.keys())
        claimed = with_keys(
            Claimed.objects.using(self.alias), set(needs.values_list("job_id", flat=True))
        )
        running = set(claimed.values_list("pk", flat=True))
        still = needs.filter(holds__isnull=False).values_list("pk", "job_id", "fence")
        return [pk for pk, job_id, fence in still if job_id not in running and fence == fences[pk]]


class BlockedLines(Look):
    """Check that blocked jobs have an existing key, and that another job holds it."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        seen: set[UUID] = set()
        for page in self.scene.pages(Blocked, "key_id"):
            fresh = {key_id for _, key_id in page} - seen
            seen |= fresh
            if fresh:
                keyless, stuck = self._judge(fresh)
                if stuck:  # after jobs are withdrawn, their keys are checked a moment later
                    time.sleep(A_MOMENT_SECONDS)
                    stuck = self._judge(set(stuck))[1]
                lost = [job_id for job_id, key_id in page if key_id in keyless]
                yield KEYLESS, lost
                yield STUCK, stuck

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        if kind is KEYLESS:
            return self._let_them_try(ids)
        with deciding(self.alias):
            keys = GuardKey.objects.using(self.alias).lock(ids)
            stuck = [key for key in keys.values() if self._is_stuck(key)]
            stuck_ids = [key.pk for key in stuck]
            update_by_key(GuardKey.objects.using(self.alias), stuck_ids, has_line=True)
        self.scene.broker.wake_up(look_after(self.alias, stuck_ids))
        return len(stuck_ids)

    def _judge(self, key_ids: set[UUID]) -> tuple[set[UUID], list[UUID]]:
        """Return the missing keys, and the keys whose blocked jobs would stay blocked for ever.
        Locks the keys, as every transaction does that blocks jobs or makes them ready.
        """
        with deciding(self.alias):
            keys = GuardKey.objects.using(self.alias).lock(key_ids)
            missing = key_ids - keys.keys()
            lines = Blocked.objects.using(self.alias).filter(key_id__in=missing)
            keyless = set(lines.values_list("key_id", flat=True)) if missing else set()
            return keyless, sorted(key.pk for key in keys.values() if self._is_stuck(key))

    def _is_stuck(self, key: GuardKey) -> bool:
        line = Blocked.objects.using(self.alias).filter(key_id=key.pk)
        if not line.exists():
            return False
        if not key.has_line:
            return True  # no process would search for them
        if key.due_us is not None:
            return False  # upkeep checks the key at that time
        if key.kind == Need.Kind.RATE:
            return True
        needs = Need.objects.using(self.alias)
        if key.kind == Need.Kind.SEQUENCE:
            first = needs.firsts([key.pk]).get(key.pk)
            return first is not None and line.filter(pk=first).exists()
        called = needs.filter(key_id=key.pk).values("job_id")
        is_someone_called = Ready.objects.using(self.alias).filter(guards__gt=0, pk__in=called)
        has_room = len(needs.holders([key.pk])[key.pk]) < key.room
        return has_room and not is_someone_called.exists()

    def _let_them_try(self, job_ids: Sequence[UUID]) -> int:
        """Move blocked jobs to the ready table. The next claim creates the key and decides."""
        with deciding(self.alias):
            blocked = Blocked.objects.using(self.alias)
            rows = lock_by_key(blocked, job_ids, *PLACE_FIELDS, "key_id")
            there = self.existing(GuardKey, {row.key_id for row in rows})
            lost = [row for row in rows if row.key_id not in there]
            delete_by_key(blocked, [row.job_id for row in lost])
            Ready.objects.using(self.alias).add(
                Place(*(getattr(row, name) for name in PLACE_FIELDS)) for row in lost
            )
        self.scene.broker.wake_up({row.queue for row in lost})
        return len(lost)


UNAPPLIED = FindingKind(
    "unapplied_migrations",
    "These migrations of stoker are not applied: run `manage.py migrate`. Nothing else was "
    "checked.",
)
MISSING_INDEX = FindingKind(
    "missing_indexes",
    "These indexes are missing. Without them a claim or a clean-up reads whole tables. Create them "
    "as the migrations do.",
)
UNREADABLE = FindingKind(
    "unreadable_packages",
    "The packages of these jobs, from a sample of the waiting ones, cannot be opened here. The "
    "jobs become dead letters when they are claimed, unless a cluster with another key is alive. "
    "Was a key rotated without SECRET_KEY_FALLBACKS?",
)
SAMPLED = 200
"""Number of packages to open, per hot table."""
WRITTEN_BY_HAND = {"stoker_job": ("stoker_job_finished",)}
"""Table -> indexes that migrations create and models do not declare."""


class Migrations(Look):
    """Check that all migrations are applied."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        yield UNAPPLIED, unapplied_migrations(self.alias)


class Indexes(Look):
    """Check that the tables have their indexes."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        connection = connections[self.alias]
        missing: list[str] = []
        with connection.cursor() as cursor:
            for model in apps.get_app_config("stoker").get_models():
                table = model._meta.db_table
                there = connection.introspection.get_constraints(cursor, table)
                missing += sorted(_named(model) - there.keys())
                indexed = {tuple(one["columns"]) for one in there.values() if _is_index(one)}
                missing += [
                    f"{table} ({column})"
                    for column in _indexed_columns(model)
                    if (column,) not in indexed
                ]
        yield MISSING_INDEX, missing


class Packages(Look):
    """Check that a sample of waiting packages can be opened, each by a backend with this
    database."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        sealers = [sealer_for(one) for one in backends_with(self.scene.settings)]
        for table in WAITING.values():
            rows = table._default_manager.using(self.alias).order_by("pk")
            job_ids = list(rows.values_list("pk", flat=True)[:SAMPLED])
            packages = Job.objects.using(self.alias).packages(job_ids) if job_ids else {}
            unreadable = sorted(
                job_id
                for job_id, package in packages.items()
                if not any(_opens(sealer, package) for sealer in sealers)
            )
            yield UNREADABLE, unreadable


def _opens(sealer: Sealer, package: bytes) -> bool:
    try:
        sealer.open(package)
    except PackageError:
        return False
    return True


def _named(model: type[models.Model]) -> set[str]:
    named = {one.name for one in (*model._meta.indexes, *model._meta.constraints)}
    return {*named, *WRITTEN_BY_HAND.get(model._meta.db_table, ())}


def _indexed_columns(model: type[models.Model]) -> list[str]:
    fields: Sequence[Any] = model._meta.concrete_fields
    return [str(one.column) for one in fields if one.db_index or one.unique]


def _is_index(constraint: Mapping[str, Any]) -> bool:
    return bool(constraint["index"] or constraint["unique"] or constraint["primary_key"])


MOST_ROWS = 1_000_000
SHOWN_IDS = 20
LOOKS: tuple[type[Look], ...] = (
    Indexes, Lines, Jobs, LostClusters, Outboxes, Needs, BlockedLines, Letters, StuckSteps,
    LeftoverNotes, Packages,
)  # fmt: skip


@dataclass(slots=True)
class Finding:
    """A kind of problem, and the rows that have it."""

    name: str
    sentence: str
    is_fault: bool
    """Whether a guarantee is broken. False: a notice, or a problem that upkeep repairs."""
    remedy: str
    """Description of the repair; "" = no repair is safe."""
    count: int = 0
    ids: list[str] = field(default_factory=list)
    """Ids of the first 20 rows."""
    mended: int = 0
    error: str = ""
    """Why a repair failed."""

    @property
    def is_mended(self) -> bool:
        return self.mended >= self.count


@dataclass(slots=True)
class Report:
    """The result of an examination."""

    findings: list[Finding]
    looked_at: int
    """Number of rows that were read."""
    cut_short: list[str]
    """Tables that were not read completely."""
    not_checked: list[str]
    """Kinds of problems that could not be searched for, because a broker outside the database, of
    this or another backend, keeps jobs."""
    seconds: float

    @property
    def is_healthy(self) -> bool:
        """Whether no guarantee is broken, or all broken ones were repaired."""
        return all(one.is_mended or not one.is_fault for one in self.findings)


def examine(settings: Settings, *, repair: bool = False, most_rows: int = MOST_ROWS) -> Report:
    """Check the whole store of a backend, page by page.

    Args:
        settings: the backend's.
        repair: whether to repair the problems that can be repaired safely.
        most_rows: maximum number of rows per table; the report names tables with more.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read, or Stoker cannot use its server.
    """
    began = time.monotonic()
    scene = Scene(settings, broker_for(settings), most_rows)
    findings: dict[str, Finding] = {}
    # A broker that leases jobs also has them between two attempts, when the store has a row. The
    # row does not say to which backend the job belongs.
    not_checked = [LOST.name] if any(map(leases_outside, backends_with(settings))) else []
    looks = [one for one in LOOKS if one is not Jobs or not not_checked]
    with explained(settings.database):
        if reason := engine_of(settings.database).why_unusable():
            raise BrokerUnavailable(reason)
        _look(Migrations(scene), findings, repair=False)
        for look in () if findings else looks:
            _look(look(scene), findings, repair=repair)
    seconds = round(time.monotonic() - began, 3)
    cut_short = sorted(scene.cut_short)
    return Report([*findings.values()], scene.looked_at, cut_short, not_checked, seconds)


def _look(look: Look, findings: dict[str, Finding], *, repair: bool) -> None:
    for kind, ids in look.find():
        if not ids:
            continue
        finding = findings.setdefault(
            kind.name, Finding(kind.name, kind.sentence, kind.is_fault, kind.remedy)
        )
        finding.count += len(ids)
        finding.ids += [str(one) for one in ids[: SHOWN_IDS - len(finding.ids)]]
        if repair and kind.remedy:
            try:
                finding.mended += look.mend(kind, ids)
            except (StokerError, DatabaseError) as error:
                finding.error = str(error)
