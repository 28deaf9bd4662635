"""Guard keys and unique keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, models

from stoker.store.clock import database_now_us
from stoker.store.written import Written, statement

from .rows import Rows

if TYPE_CHECKING:
    from stoker.models.job import NewJob
    from stoker.models.need import StatedNeed
    from stoker.models.unique_key import Condition, Taking

KEY = (
    "id", "kind", "name", "fence", "places", "places_by", "has_line", "period_us", "burst",
    "starts",
)  # fmt: skip
"""Columns of a new guard key. The other columns are NULL."""
UNIQUE = ("key_id", "name", "job_id", "taken_us", "until_us")
"""Columns of a unique key."""


class Keys(Rows):
    """Default implementation, which creates and takes keys one by one."""

    def lock_or_make(
        self, keys: models.QuerySet[Any], needs: Sequence[StatedNeed]
    ) -> Sequence[Any]:
        """Lock guard keys. Create missing keys, and raise the fencing number of each.

        Args:
            keys: query for all guard keys.
            needs: one need per key, in the order of the keys.

        Returns:
            The locked keys.
        """
        written, fence = Written(self.connection), database_now_us(self.alias)
        text = f"{self.insert_into('stoker_key', KEY)} {self.on_conflict('id')} fence = fence + 1"
        with self.connection.cursor() as cursor:
            cursor.executemany(
                text,
                [
                    (
                        written.id(need.key_id),
                        need.kind,
                        need.name,
                        fence,
                        need.places,
                        written.id(need.job_id),
                        False,
                        need.period_us,
                        need.burst,
                        "[]",
                    )
                    for need in needs
                ],
            )
        return self.lock_by_key(keys, [need.key_id for need in needs])

    def take_new_keys(self, takings: Sequence[Taking]) -> bool:
        """Take unique keys that have no row yet. Wait for transactions that are inserting one of
        them.

        Returns:
            Whether all keys were taken.
        """
        write = Written(self.connection).id
        rows = [
            (write(one.key_id), one.name, write(one.job_id), one.taken_us, one.until_us)
            for one in sorted(takings)  # in order, for the reason given in unique_insert.sql
        ]
        try:
            self.insert_rows("stoker_unique", UNIQUE, rows)
        except IntegrityError:
            return False  # only the statement fails here, not the transaction
        return True

    def take_over_keys(
        self, keys: models.QuerySet[Any], takings: Sequence[Taking], condition: Condition
    ) -> bool:
        """Take unique keys from their present jobs, unless another transaction has taken one first.

        Args:
            keys: query for all unique keys.
            takings: one for each key that was seen to belong to a job.
            condition: checked again in the statement that takes the keys.

        Returns:
            Whether all keys were taken.
        """
        write = Written(self.connection).id
        rows = [
            (
                one.name,
                write(one.job_id),
                one.taken_us,
                one.until_us,
                write(one.key_id),
                write(one.old_job_id),
                one.over_us,
            )
            for one in sorted(takings)
            if one.old_job_id is not None
        ]
        with self.connection.cursor() as cursor:
            cursor.executemany(statement("unique_take_over_one", condition=condition.sql), rows)
            return bool(cursor.rowcount == len(takings))

    def take_key_and_insert(
        self, taking: Taking, condition: Condition, job: NewJob, letter: Mapping[str, Any]
    ) -> bool:
        """Take a unique key and insert its job, if the database can do both in one statement.

        Args:
            taking: the key.
            condition: must hold for the job that the key was seen to belong to.
            job: a job without guards.
            letter: the dead letter that the job continues: parameters of unique_add_one.sql.

        Returns:
            Whether it was done. If not, another transaction took the key, or several statements are
                needed.
        """
        return False
