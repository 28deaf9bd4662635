"""What the work stands on: migrations, indexes, packages that can be opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import connections, models
from django.db.migrations.loader import MigrationLoader

from stoker.exceptions import PackageError
from stoker.models import Job
from stoker.models.places import WAITING
from stoker.package import sealer_for

from .look import Kind, Look

UNAPPLIED = Kind(
    "unapplied_migrations",
    "These migrations of stoker are not applied: run `manage.py migrate`. Nothing else was looked "
    "at.",
)
MISSING_INDEX = Kind(
    "missing_indexes",
    "These indexes are missing, without which a claim or a clean-up reads whole tables: create "
    "them as the migrations do.",
)
UNREADABLE = Kind(
    "unreadable_packages",
    "The packages of these jobs, from a sample of those that wait, cannot be opened here; they "
    "become dead letters when their turn comes. Was a key rotated without SECRET_KEY_FALLBACKS?",
)
SAMPLED = 200
"""Packages that are opened, of each line."""
WRITTEN_BY_HAND = {"stoker_job": ("stoker_job_finished",)}
"""Indexes that a migration makes and no model names."""


class Migrations(Look):
    """All of them are applied."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        loader = MigrationLoader(connections[self.alias])
        known = [key for key in loader.graph.nodes if key[0] == "stoker"]
        yield UNAPPLIED, sorted(key[1] for key in known if key not in loader.applied_migrations)


class Indexes(Look):
    """The tables have theirs."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
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
    """A sample of those that wait can be opened."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        sealer = sealer_for(self.scene.settings)
        for table in WAITING.values():
            rows = table._default_manager.using(self.alias).order_by("pk")
            job_ids = list(rows.values_list("pk", flat=True)[:SAMPLED])
            unreadable: list[UUID] = []
            packages = Job.objects.using(self.alias).packages(job_ids) if job_ids else {}
            for job_id, package in packages.items():
                try:
                    sealer.open(package)
                except PackageError:
                    unreadable.append(job_id)
            yield UNREADABLE, sorted(unreadable)


def _named(model: type[models.Model]) -> set[str]:
    named = {one.name for one in (*model._meta.indexes, *model._meta.constraints)}
    return {*named, *WRITTEN_BY_HAND.get(model._meta.db_table, ())}


def _indexed_columns(model: type[models.Model]) -> list[str]:
    fields: Sequence[Any] = model._meta.concrete_fields
    return [str(one.column) for one in fields if one.db_index or one.unique]


def _is_index(constraint: Mapping[str, Any]) -> bool:
    return bool(constraint["index"] or constraint["unique"] or constraint["primary_key"])
