"""Keys of guards, and unique keys."""

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
"""The columns of a guard's key that is made: the rest is NULL."""
UNIQUE = ("key_id", "name", "job_id", "taken_us", "until_us")
"""The columns of a unique key."""


class Keys(Rows):
    """A database in which keys are made and taken one by one."""

    def lock_or_make(
        self, keys: models.QuerySet[Any], needs: Sequence[StatedNeed]
    ) -> Sequence[Any]:
        """Lock the keys of guards: those that are not there yet are made, and the fence of each is
        one that nobody has had.

        Args:
            keys: the rows of all keys.
            needs: one for each key, in the order of the keys.

        Returns:
            The keys.
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
        """Take unique keys that nobody has had. Waits for others who are about to take one of them.

        Returns:
            Whether all of them are taken.
        """
        write = Written(self.connection).id
        rows = [
            (write(one.key_id), one.name, write(one.job_id), one.taken_us, one.until_us)
            for one in sorted(takings)  # for the reason that unique_insert.sql gives
        ]
        try:
            self.insert_rows("stoker_unique", UNIQUE, rows)
        except IntegrityError:
            return False  # here, that ends a statement, and no transaction
        return True

    def take_over_keys(
        self, keys: models.QuerySet[Any], takings: Sequence[Taking], condition: Condition
    ) -> bool:
        """Take unique keys from the jobs that were seen to have them, unless somebody was quicker.

        Args:
            keys: the rows of all unique keys.
            takings: each of a key that a job was seen to have.
            condition: checked once more when it comes to it.

        Returns:
            Whether all of them are taken.
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
        """Take a unique key, and insert the job that it is taken for, if one statement can do both.

        Args:
            taking: the key.
            condition: must be true of the job that was seen to have it.
            job: needs nothing.
            letter: which dead letter it carries on: parameters of unique_add_one.sql.

        Returns:
            Whether it is done. If not, somebody was quicker, or it takes more than a statement.
        """
        return False
