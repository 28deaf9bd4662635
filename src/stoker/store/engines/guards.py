"""Read and change the keys and needs of a whole batch of jobs with a few statements.

The default methods are SQLite's, MariaDB's and MySQL's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import models

from stoker.store.written import Written, as_uuid

from .rows import KeyRows

if TYPE_CHECKING:
    from stoker.models.blocked import BlockedLine
    from stoker.models.claimed import Claim, Leasing
    from stoker.models.guard_key import Decisions
    from stoker.models.need import StatedNeed

KEY = (
    "id", "kind", "name", "fence", "places", "places_by", "places_set", "has_line", "period_us",
    "burst", "starts", "due_us",
)  # fmt: skip
"""Columns of a guard key, in the order of its fields."""
CHANGING = ("fence", "places", "places_by", "has_line", "period_us", "burst", "starts", "due_us")
"""Columns of a guard key that a claim may change."""
CalledLine = tuple[UUID, str, int, bool]
"""Key, queue, number of moved jobs, and whether one was skipped."""
LISTS = {
    "held": "unnest((SELECT %(held)s::uuid[])) AS held (id)",
    "sequences": "unnest((SELECT %(sequences)s::uuid[])) AS sequence (id)",
    "lines": "unnest((SELECT %(line_keys)s::uuid[]), (SELECT %(line_queues)s::varchar[]))"
    " AS line (id, queue)",
    "queue": "line.queue",
    **dict.fromkeys(("holders_index", "order_index", "line_index"), ""),
}
"""Placeholder -> text, for guard_state.sql on PostgreSQL."""
State = tuple[int, "UUID | None", "UUID | None", str, int]
"""A row of guard_state.sql: its meaning (see below), key, job, queue and number."""
HOLDER, FIRST, HEAD, NOW = 1, 2, 3, 0
"""Values of a row's first column. HOLDER: the job holds a place. FIRST: it is the oldest of a
sequence. HEAD: it is the first of a line. NOW: the row holds the database's time."""


class GuardRows(KeyRows):
    """Default implementation for the tables of guards."""

    returns_upserts = False
    """Whether an INSERT that updates existing rows instead can return the rows."""

    def keys_being_made(self, keys: models.QuerySet[Any], key_ids: Collection[UUID]) -> set[UUID]:
        """Return those of the given keys that other transactions have inserted and not committed
        yet, if the database can find out without waiting."""
        return set()

    def find_needs(self, need_ids: Collection[UUID]) -> Iterable[tuple[Any, ...]]:
        """Return the needs with these ids, in this order, as tuples of the fields of
        ``StatedNeed``."""
        return [
            (
                *map(as_uuid, row[:3]),
                *row[3:11],
                bool(row[11]),
                None if row[12] is None else as_uuid(row[12]),
                row[13],
            )
            for row in self.find_each("need_of_jobs", need_ids, "PRIMARY")
        ]

    def lock_or_make(
        self, keys: models.QuerySet[Any], needs: Sequence[StatedNeed]
    ) -> list[tuple[Any, ...]]:
        """Lock guard keys. Create missing keys, and raise the fencing number of each.

        Args:
            keys: query for all guard keys.
            needs: one need per key, in the order of the keys.

        Returns:
            The columns of the locked keys.
        """
        quote, write = self.connection.ops.quote_name, Written(self.connection).id
        values = [
            (write(need.key_id), need.kind, need.name, need.places, write(need.job_id),
             need.period_us, need.burst)
            for need in needs
        ]  # fmt: skip
        stated = ("id", "kind", "name", "places", "places_by", "period_us", "burst")
        columns = ", ".join(map(quote, (*stated, "fence", "has_line", "starts")))
        row = f"(%s, %s, %s, %s, %s, %s, %s, {self.now_sql}, FALSE, '[]')"
        text = (
            f"INSERT INTO stoker_key ({columns}) VALUES {', '.join([row] * len(values))}"  # noqa: S608 - our own names
            f" {self.on_conflict('id')} fence = stoker_key.fence + 1"
        )
        parameters = [value for one in values for value in one]
        if self.returns_upserts:
            text += f" RETURNING {', '.join(map(quote, KEY))}"
            found = self._read(text, parameters)
        else:
            self._write(text, parameters)
            found = self.hold(keys, KEY, [need.key_id for need in needs], "UPDATE")
        return [self.key_fields(row) for row in found]

    def key_fields(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Convert the columns of a guard key from the driver."""
        key_id, kind, name, fence, places, places_by, places_set, has_line, *rest, starts, due = row
        by = None if places_by is None else as_uuid(places_by)
        if isinstance(starts, str | bytes):  # nearly always there are none
            starts = json.loads(starts) if len(starts) > len("[]") else []
        return (as_uuid(key_id), kind, name, fence, places, by, places_set, bool(has_line), *rest,
                starts, due)  # fmt: skip

    def guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> list[State]:
        """Read the data for decisions about jobs under keys that the caller has locked.

        Args:
            held: keys whose holders to read.
            sequences: sequences whose oldest job to read.
            lines: lines whose first job to read.

        Returns:
            Holders of places, oldest jobs of sequences, first jobs of lines, and the time.
        """
        rows = self._guard_state(held, sequences, lines)
        return [
            (what, key and as_uuid(key), job and as_uuid(job), queue, int(number or 0))
            for what, key, job, queue, number in rows
        ]

    def _guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> Sequence[tuple[Any, ...]]:
        raise NotImplementedError  # each engine has its own

    def change_keys(self, keys: Sequence[Any]) -> None:
        """Write the columns that a claim may change, for keys that the caller has locked."""
        write = Written(self.connection).id
        new, end = self.new_value
        names = ("id", "kind", "name", *CHANGING)
        quoted = list(map(self.connection.ops.quote_name, CHANGING))
        changes = ", ".join(f"{name} = {new}{name}{end}" for name in quoted)
        text = f"{self.insert_into('stoker_key', names)} {self.on_conflict('id')} {changes}"
        rows = [
            (write(key.pk), key.kind, key.name, key.fence, key.places,
             key.places_by and write(key.places_by), key.has_line, key.period_us, key.burst,
             json.dumps(key.starts), key.due_us)
            for key in keys
        ]  # fmt: skip
        if rows:
            with self.connection.cursor() as cursor:
                cursor.executemany(text, rows)


class GuardsInArrays(GuardRows):
    """PostgreSQL's implementation: rows are passed as arrays."""

    def lock_or_make(
        self, keys: models.QuerySet[Any], needs: Sequence[StatedNeed]
    ) -> list[tuple[Any, ...]]:
        arrays = {
            "id": [need.key_id for need in needs],
            "kind": [need.kind for need in needs],
            "name": [need.name for need in needs],
            "places": [need.places for need in needs],
            "places_by": [need.job_id for need in needs],
            "period_us": [need.period_us for need in needs],
            "burst": [need.burst for need in needs],
        }
        return [self.key_fields(row) for row in self.fetch("key_lock_or_make", arrays)]

    def find_needs(self, need_ids: Collection[UUID]) -> Iterable[tuple[Any, ...]]:
        return self.find_each("need_of_jobs", need_ids)

    def _guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> Sequence[tuple[Any, ...]]:
        arrays = {
            "held": list(held),
            "sequences": list(sequences),
            "line_keys": [line.key_id for line in lines],
            "line_queues": [line.queue for line in lines],
        }
        return self.fetch("guard_state", arrays, **LISTS, join="JOIN", now=self.now_sql)

    def carry_out(
        self,
        ready: models.QuerySet[Any],
        needs: models.QuerySet[Any],
        decisions: Decisions,
        leasing: Leasing,
    ) -> list[Claim]:
        blocked, deferred, keys = decisions.blocked, decisions.deferred, decisions.keys
        arrays = {
            **leasing._asdict(),
            "job_ids": decisions.job_ids,
            "turned_ids": [one.job_id for one, _ in (*blocked, *deferred)],
            "key_ids": [*(key_id for _, key_id in blocked), *(None for _ in deferred)],
            "until_us": [*(None for _ in blocked), *(until_us for _, until_us in deferred)],
            "need_ids": list(decisions.fences),
            "fences": list(decisions.fences.values()),
            "id": [key.pk for key in keys],
            **{name: [getattr(key, name) for key in keys] for name in CHANGING},
            "starts": [json.dumps(key.starts) for key in keys],
        }
        rows = {row[0]: row for row in self.fetch("guard_decided", arrays)}
        return [rows[one.job_id] for one in decisions.leased]

    def call_first(
        self, blocked: models.QuerySet[Any], counts: Mapping[UUID, int]
    ) -> list[CalledLine]:
        arrays = {"key_ids": list(counts), "counts": list(counts.values())}
        return self.fetch("blocked_call", arrays)
