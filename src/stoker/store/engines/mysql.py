"""MariaDB and MySQL: pass keys as a JSON list and join the table to it.

With other forms of key lists these databases may read a whole table, and lock or wait for rows that
are not in the list.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import OperationalError, models
from django.db.models.lookups import Exact

from stoker.store.written import NOW_ON_MYSQL, Written, as_uuid, statement

from .base import Engine
from .mysql_sessions import LOCK_WAIT_TIMEOUT, MySQLSessions
from .sessions import LARGE_BYTES

if TYPE_CHECKING:
    from stoker.models.blocked import BlockedLine
    from stoker.models.job import Message
    from stoker.models.unique_key import Condition, Taking

LOCKED_BY_ANOTHER = {LOCK_WAIT_TIMEOUT, 3572}
"""Error codes: ER_LOCK_WAIT_TIMEOUT of MariaDB, ER_LOCK_NOWAIT of MySQL."""
WANTED = "JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) CHARACTER SET ascii PATH '$')) AS wanted"
"""A list of keys as a table. It is ASCII, so that it can be compared with a column of any
collation."""

LISTS = {
    "held": WANTED.replace("%s", "%(held)s").replace("wanted", "held"),
    "sequences": WANTED.replace("%s", "%(sequences)s").replace("wanted", "sequence"),
    "lines": "JSON_TABLE(%(lines)s, '$[*]' COLUMNS (id CHAR(36) CHARACTER SET ascii PATH '$[0]',"
    " number INT PATH '$[1]')) AS line",
    "join": "STRAIGHT_JOIN",
    "holders_index": "FORCE INDEX (stoker_need_holders)",
    "order_index": "FORCE INDEX (stoker_need_order)",
    "line_index": "FORCE INDEX (stoker_blocked_line)",
}
"""Placeholder -> text, for guard_state.sql."""
NO_LIMIT_ON_MARIADB = "SET STATEMENT max_recursive_iterations = 4294967295 FOR "
NO_LIMIT_ON_MYSQL = "/*+ SET_VAR(cte_max_recursion_depth = 4294967295) */ "


class MySQL(MySQLSessions, Engine):
    """MariaDB or MySQL."""

    now_sql = NOW_ON_MYSQL

    def insert_jobs(self, jobs: Sequence[Message]) -> set[UUID]:
        for job in jobs:
            self._refuse_package(job)
        return super().insert_jobs(jobs)

    def insert_fresh(self, job: Message) -> None:
        self._refuse_package(job)
        super().insert_fresh(job)

    def _refuse_package(self, job: Message) -> None:
        if len(job.package) >= LARGE_BYTES:
            self.refuse_too_large(job.package)

    # -- statements -------------------------------------------------------------------------------

    def fetch(self, name: str, parameters: Any, **words: str) -> list[tuple[Any, ...]]:
        """Let a recursive statement return any number of rows. By default MariaDB ends it after
        1,000 steps without an error, and MySQL with one."""
        text = statement(name, **words)
        if text.startswith("WITH RECURSIVE"):
            if self._is_mariadb:
                text = NO_LIMIT_ON_MARIADB + text
            else:
                text = text.replace("\nSELECT ", f"\nSELECT {NO_LIMIT_ON_MYSQL}", 1)
        return self._read(text, parameters)

    def is_exactly(self, field: str, text: str) -> models.Q:
        """Let an index find the texts that are the same for the collation, and compare those as
        bytes."""
        in_bytes = models.Func(
            models.F(field),
            template="CAST(CONVERT(%(expressions)s USING utf8mb4) AS BINARY)",
            output_field=models.BinaryField(),
        )
        return super().is_exactly(field, text) & models.Q(Exact(in_bytes, text.encode()))

    def lock_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
    ) -> list[Any]:
        lock = self._lock("UPDATE") + ("" if waits else " SKIP LOCKED")
        meta = rows.model._meta
        fields = [meta.pk if name == "pk" else meta.get_field(name) for name in names]
        if fields:
            fields.append(meta.pk)  # else Django cannot make objects
        read = [field.column for field in fields or meta.concrete_fields]
        text = self._hold_text("hold_by_key", rows, list(dict.fromkeys(read)), lock)
        return list(rows.raw(text, [self._listed(keys)]))

    def hold(
        self, rows: models.QuerySet[Any], names: Sequence[str], keys: Collection[UUID], lock: str
    ) -> list[tuple[Any, ...]]:
        text = self._hold_text("hold_by_key", rows, names, self._lock(lock))
        return self._read(text, [self._listed(keys)])

    def _lock(self, lock: str) -> str:
        """Return the lock clause. On MySQL it must exclude the rows of the JSON list; MariaDB has
        no syntax for that and does not need it."""
        if self._is_mariadb:
            return "LOCK IN SHARE MODE" if lock == "SHARE" else "FOR UPDATE"
        return f"FOR {lock} OF narrow"

    def keys_being_made(self, keys: models.QuerySet[Any], key_ids: Collection[UUID]) -> set[UUID]:
        return {key_id for key_id in key_ids if not self._is_free(keys, key_id)}

    def _is_free(self, rows: models.QuerySet[Any], key: UUID) -> bool:
        """Lock a row, if there is one. Return False if another transaction has it, or is inserting
        it.

        Raises:
            OperationalError: with ``innodb_rollback_on_timeout``, MariaDB has rolled back the whole
                transaction because of that.
        """
        try:
            rows.filter(pk=key).select_for_update(nowait=True).values_list("pk").first()
        except OperationalError as error:
            if error.args[0] not in LOCKED_BY_ANOTHER or self._was_rolled_back(error):
                raise
            return False
        return True

    among_others = "({})"

    def _line_words(self, index: str) -> dict[str, str]:
        """Force the index, whose entries already show that another transaction has locked a row.

        Otherwise a deadlock is possible: a transaction that uses the index locks the entry, and
        then waits for the row of a transaction that found it by the primary key. The latter waits
        for the entry when it deletes the row.
        """
        return {"index": f"FORCE INDEX ({index})", "lock": "FOR UPDATE SKIP LOCKED"}

    def find_each(
        self, name: str, keys: Collection[UUID], index: str = "", *before: Any
    ) -> list[tuple[Any, ...]]:
        words = {"wanted": WANTED, "join": "STRAIGHT_JOIN", "index": f"FORCE INDEX ({index})"}
        return self.fetch(name, [*before, self._listed(keys)], now=self.now_sql, **words)

    def delete_by_key(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> int:
        return self._delete_by(rows, keys, rows.model._meta.pk.column, "PRIMARY")

    def delete_of_jobs(self, rows: models.QuerySet[Any], job_ids: Collection[UUID]) -> None:
        meta = rows.model._meta
        there = [one for one in (*meta.constraints, *meta.indexes) if one.fields[0] == "job_id"]
        self._delete_by(rows, job_ids, "job_id", there[0].name)

    def _delete_by(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], column: str, index: str
    ) -> int:
        if not keys:
            return 0
        quote = self.connection.ops.quote_name
        table = quote(rows.model._meta.db_table)
        words = {"table": table, "column": quote(column), "index": quote(index)}
        return self._write(statement("delete_by_key", **words), [self._listed(keys)])

    def update_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any
    ) -> None:
        if keys:
            assignments, prepared = self._assignments(rows.model, values)
            text = self.text_about("update_by_key", rows, assignments=assignments)
            self._write(text, [self._listed(keys), *prepared])

    def _assignments(
        self, model: type[models.Model], values: dict[str, Any]
    ) -> tuple[str, list[Any]]:
        """Return the SET clause of an UPDATE, and its parameters."""
        written, prepared = [], []
        columns = {field.name: field for field in model._meta.concrete_fields}
        for name, value in values.items():
            field = columns[name]
            if isinstance(value, models.F):
                other = columns[value.name]  # type: ignore[attr-defined] # missing in the stubs
                written.append(f"narrow.{field.column} = narrow.{other.column}")
            else:
                written.append(f"narrow.{field.column} = %s")
                prepared.append(field.get_db_prep_save(value, self.connection))
        return ", ".join(written), prepared

    def _update_each(
        self, rows: models.QuerySet[Any], numbers: Mapping[UUID, int], **words: str
    ) -> None:
        write = Written(self.connection).id
        listed = json.dumps([(write(key), numbers[key]) for key in sorted(numbers)], default=str)
        self._write(self.text_about("update_each_by_key", rows, **words), [listed])

    @property
    def returns_upserts(self) -> bool:  # type: ignore[override] # depends on the server
        return self._is_mariadb

    def _guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> Sequence[tuple[Any, ...]]:
        """Pass each queue as a parameter, because a list of them could not be compared with a
        column of any collation."""
        write = Written(self.connection).id
        queues = sorted({line.queue for line in lines})
        names = {f"queue_{number}": queue for number, queue in enumerate(queues)}
        listed = [(write(line.key_id), 1 + queues.index(line.queue)) for line in sorted(lines)]
        parameters = {
            "held": self._listed(held),
            "sequences": self._listed(sequences),
            "lines": json.dumps(listed, default=str),
            **names,
        }
        marks = "".join(f", %({name})s" for name in names) or ", ''"
        return self.fetch(
            "guard_state",
            parameters,
            **LISTS,
            queue=f"ELT(line.number{marks})",
            now=self.now_sql,
        )

    new_value = ("VALUES(", ")")

    def on_conflict(self, columns: str) -> str:
        return "ON DUPLICATE KEY UPDATE"

    def add_waits(self, values: Sequence[Sequence[Any]], *more: str) -> None:
        """Insert or change rows by their primary keys.

        An INSERT that meets a row in the unique index locks the gap before it until the end of the
        transaction, also at READ COMMITTED. Claims and records of other jobs would have to wait.
        """
        job_ids = {as_uuid(value[0]) for value in values}
        found = self.find_each("waits_of_jobs", job_ids, "stoker_wait_once")
        known = {(as_uuid(job_id), *cause): key for key, job_id, *cause in found}
        rows = [(*value, known.get((as_uuid(value[0]), *value[1:4]))) for value in values]
        super().add_waits(rows, *more, "id")

    def take_new_keys(self, takings: Sequence[Taking]) -> bool:
        """Ask for exclusive locks before the INSERT, which waits with shared ones: if the other
        transaction rolls back, all that wait would get those, and deadlock. At REPEATABLE READ,
        exclusive locks would do the same."""
        if self.sees_later_commits(self.connection):
            words = {"columns": "narrow.key_id", "table": "stoker_unique", "key": "key_id"}
            text = statement("hold_by_key", **words, lock=self._lock("UPDATE"))
            if self._read(text, [self._listed(one.key_id for one in takings)]):
                return False
        return super().take_new_keys(takings)

    def take_over_keys(
        self, keys: models.QuerySet[Any], takings: Sequence[Taking], condition: Condition
    ) -> bool:
        """Lock the keys, and check the condition in Python.

        An UPDATE with subqueries would lock the rows that these read: rows of jobs, whose end would
        then have to wait.
        """
        key_ids = [one.key_id for one in takings]
        self.lock_by_key(keys, key_ids, "key_id")
        seen = keys.look(key_ids)[1]  # type: ignore[attr-defined] # of UniqueKeyQuerySet
        met = [one for one in takings if one.key_id in seen and condition.is_met(seen[one.key_id])]
        write = Written(self.connection).id
        listed = json.dumps(met, default=lambda key: str(write(key)))
        return self._write(statement("unique_take_over_by_key"), [listed]) == len(takings)

    def _listed(self, keys: Iterable[UUID]) -> str:
        """Return the keys as a sorted JSON list, in the form of the database's columns."""
        write = Written(self.connection).id
        return json.dumps([write(key) for key in sorted(keys)], default=str)
