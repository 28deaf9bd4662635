"""PostgreSQL: pass rows as arrays, and move them between tables in one statement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, models, transaction
from django.db.backends.signals import connection_created

from stoker.conf import Settings
from stoker.store import prepared, wake
from stoker.store.copy import insert_arrays
from stoker.store.past_cursor import Insert, send_past_cursor
from stoker.store.transactions import is_locked_out
from stoker.store.written import (
    NOW_ON_POSTGRESQL,
    array_literal,
    arrays_of,
    called_arrays,
    columns,
    each_job_once,
    ended_arrays,
    list_literal,
    parameters_of,
    parts_of,
    statement,
    taking_arrays,
)

from .base import CalledLine, Engine, aware
from .rows import CHANGING
from .sessions import is_read_committed, session_limits

if TYPE_CHECKING:
    from stoker.models.blocked import BlockedLine
    from stoker.models.claimed import Claim, LeaseKey, Leasing, Released
    from stoker.models.guard_key import Decisions
    from stoker.models.job import JobColumns, Message
    from stoker.models.need import StatedNeed
    from stoker.models.step import StepEnd
    from stoker.models.unique_key import Condition, Taking

CLIENT_EXTRA_SECONDS = 1.0
"""How many seconds longer than ``DATABASE_SECONDS`` the client waits. The server's deadline then
ends the call first, unless the connection is lost."""
UNKNOWN = 4
"""libpq's number for the transaction status of a broken connection."""
PLANNING = "-c enable_bitmapscan=off"
"""For a queue that is missing from its statistics, the planner assumes few rows. It would then
fetch and sort the whole queue for each claim, however long, instead of reading its index."""
READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
"""The isolation level of a process that decides. A server, a database or a role may have another
default."""
LOCK_TIMEOUT = re.compile(r"-c lock_timeout=(\d+)(?!\S)")
AMONG = "= ANY ((SELECT %(keys)s::uuid[])::uuid[])"
WANTED = "unnest((SELECT %(keys)s::uuid[])) AS wanted (id)"
LISTS = {
    "held": "unnest((SELECT %(held)s::uuid[])) AS held (id)",
    "sequences": "unnest((SELECT %(sequences)s::uuid[])) AS sequence (id)",
    "lines": "unnest((SELECT %(line_keys)s::uuid[]), (SELECT %(line_queues)s::varchar[]))"
    " AS line (id, queue)",
    "queue": "line.queue",
    **dict.fromkeys(("holders_index", "order_index", "line_index"), ""),
}
"""Placeholder -> text, for guard_state.sql."""
INSERT_BYTES = 1 << 24
"""Maximum size of the packages in one INSERT. They are sent as text of twice this size, and the
server accepts 1 GiB."""
PROBES, PROBE_MILLISECONDS = 32, 10
"""How often and for how long a claim tries whether new guard keys can be inserted."""
ABOUT_ROWS = ("table", "key", "columns", "lock")
ALWAYS_THE_SAME = frozenset({"now", "among", "wanted", "join", "index", *LISTS, *ABOUT_ROWS})
"""Names of template words that have few different values."""


class _AmongKeys(models.Func):
    """The condition that a UUID is in an array."""

    template = "%(expressions)s::uuid[])"
    arg_joiner = " = ANY("
    output_field = models.BooleanField()


class PostgreSQL(Engine):
    """PostgreSQL with psycopg 3 or 2."""

    is_supported = True
    now_sql = NOW_ON_POSTGRESQL

    # -- connections ------------------------------------------------------------------------------

    def call_limits(self, seconds: int) -> dict[str, Any]:
        return {
            "connect_timeout": seconds,
            "keepalives_idle": seconds,
            "tcp_user_timeout": seconds * 1000,
        }

    def limit_calls(self, connection: Any, seconds: float, session: Sequence[str] = ()) -> None:
        options = connection.settings_dict.setdefault("OPTIONS", {})
        options.pop("pool", None)  # connections of a pool cannot be kept as long as needed
        super().limit_calls(connection, seconds)
        connection.settings_dict[prepared.SECONDS_KEY] = seconds + CLIENT_EXTRA_SECONDS
        connection_created.connect(prepared.limit_waits, dispatch_uid="stoker.limit_waits")
        milliseconds = max(1, round(seconds)) * 1000
        if session:
            # The last value counts, so the project may choose its statement_timeout only.
            ours = f"-c statement_timeout={milliseconds}"
            options["options"] = " ".join(filter(None, (ours, options.get("options"), *session)))
        else:
            prepared.limit_transactions(connection, {"statement_timeout": milliseconds})

    def limit_sessions(
        self, settings: Settings, *, keeps_statements: bool, is_cluster: bool
    ) -> Sequence[str]:
        limits = session_limits(settings) if is_cluster else {}
        if self.connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            local = {name: limits[name] for name in limits if not name.startswith("tcp_")}
            prepared.limit_transactions(self.connection, local)
            return ()
        ours = [PLANNING, READ_COMMITTED, *(f"-c {name}={value}" for name, value in limits.items())]
        if keeps_statements and _has_psycopg3():
            ours.append(prepared.PLANNING)
            prepared.keep_statements(self.connection)
        return ours

    def limit_lock_waits(self, seconds: float) -> AbstractContextManager[None]:
        self._read("SELECT set_config('lock_timeout', %s, true)", [f"{round(seconds * 1000)}ms"])
        return nullcontext()  # it ends with the transaction

    def weaknesses(self) -> list[str]:
        given = LOCK_TIMEOUT.findall(str(self.connection.settings_dict["OPTIONS"].get("options")))
        used = self._read("SELECT setting FROM pg_settings WHERE name = 'lock_timeout'", [])
        if not given or used == [(given[-1],)]:
            return []
        told = (
            f"The options of a cluster's sessions have no effect in the database {self.alias!r}, "
            "probably because of a pooler with ignore_startup_parameters: set "
            f'"DISABLE_SERVER_SIDE_CURSORS": True in DATABASES["{self.alias}"], or connect the '
            "cluster to PostgreSQL directly. Otherwise its statements have no deadlines."
        )
        return [told]

    def sees_later_commits(self, connection: Any) -> bool:
        if "isolation_level" in connection.settings_dict["OPTIONS"]:
            return super().sees_later_commits(connection)
        return is_read_committed(prepared.default_isolation(connection))

    def is_in_transaction(self, connection: Any) -> bool:
        raw = connection.connection
        return raw is not None and raw.info.transaction_status not in (prepared.IDLE, UNKNOWN)

    def open_wake(self) -> wake.Wake:
        # Behind a transaction pooler, LISTEN would stay in a session that other clients use.
        is_pooled = self.connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        return wake.Listener(self.alias) if _has_psycopg3() and not is_pooled else wake.NoWake()

    def notify(self) -> None:
        if self.connection.in_atomic_block or not wake.may_notify(self.alias):
            return
        wake.note_notice(self.alias)
        with suppress(DatabaseError, InterfaceError), self.connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {wake.CHANNEL}")

    def vacuum(
        self, names: Sequence[str], dead: Mapping[str, int], beat: Callable[[], None]
    ) -> Mapping[str, int]:
        """Vacuum tables that have changed. A claim reads the left edge of the hot tables, so dead
        rows there must be removed within seconds; autovacuum is too slow."""
        vacuum = "VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF)"
        failure: DatabaseError | None = None
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT relname, n_tup_del + n_tup_upd FROM pg_stat_user_tables"
                " WHERE relname = ANY (%s) AND pg_table_is_visible(relid)",
                [list(names)],
            )
            now: dict[str, int] = dict(cursor.fetchall())
            for name in [one for one in names if now.get(one, 0) != dead.get(one)]:
                beat()
                try:
                    cursor.execute(f"{vacuum} {self.connection.ops.quote_name(name)}")
                except DatabaseError as error:  # such as a time-out: go on with the next table
                    failure = error
        if failure is not None:
            raise failure
        return now

    # -- statements -------------------------------------------------------------------------------

    def fetch(self, name: str, parameters: Any, **words: str) -> list[tuple[Any, ...]]:
        connection = self.connection
        is_named = isinstance(parameters, dict)
        if is_named and words.keys() <= ALWAYS_THE_SAME and prepared.are_kept(connection):
            return prepared.fetch_kept(connection, statement(name, **words), parameters)
        if is_named:
            parameters = {
                key: array_literal(value) if isinstance(value, list) else value
                for key, value in parameters.items()
            }
        return super().fetch(name, parameters, **words)

    def among(self, keys: Collection[UUID]) -> tuple[str, list[Any]]:
        """Return a condition on an array in a subquery. claimed_ack.sql explains why."""
        return "= ANY ((SELECT %s::uuid[])::uuid[])", [array_literal(list(keys))]

    def find_by_key(self, name: str, digits: Sequence[str], **words: str) -> list[tuple[Any, ...]]:
        return self.fetch(name, {"keys": list_literal(digits)}, among=AMONG, **words)

    def hold(
        self, rows: models.QuerySet[Any], names: Sequence[str], keys: Collection[UUID], lock: str
    ) -> list[tuple[Any, ...]]:
        quote = self.connection.ops.quote_name
        words = {
            "columns": ", ".join(f"narrow.{quote(name)}" for name in names),
            "table": quote(rows.model._meta.db_table),
            "key": quote(rows.model._meta.pk.column),
            "lock": f"FOR {lock}",
        }
        return self.fetch("hold_each", {"keys": list(keys)}, among=AMONG, **words)

    def with_keys(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
        """Pass the keys as one array: hundreds of parameters would take longer than the look-up.

        There is no subquery and no join. If the planner believed the table to be empty, as after a
        vacuum in a quiet time, it would compare each row with each key, or read a whole index.
        """
        return rows.filter(_AmongKeys(models.F("pk"), models.Value(array_literal(list(keys)))))

    def find_each(
        self, name: str, keys: Collection[UUID], index: str = "", *before: Any
    ) -> list[tuple[Any, ...]]:
        return self.fetch(name, {"keys": list(keys)}, wanted=WANTED, join="JOIN", index="")

    def insert_models(self, new: models.QuerySet[Any], rows: Sequence[Any], **options: Any) -> None:
        insert = super().insert_models if "update_conflicts" in options else insert_arrays
        insert(new, rows, **options)

    # -- jobs -------------------------------------------------------------------------------------

    @property
    def takes_copies(self) -> bool:
        """Return whether the driver supports COPY and nothing wraps Django's cursor. COPY would
        bypass such wrappers, which may forbid or log statements."""
        connection = self.connection
        return hasattr(connection.Database, "Copy") and not connection.execute_wrappers

    def insert_jobs(self, jobs: Sequence[Message]) -> set[UUID]:
        if len(jobs) == 1 and not jobs[0].needs:
            return {row[0] for row in self.fetch("job_add_one", parameters_of(jobs[0]))}
        parts = list(parts_of(jobs, len(jobs), INSERT_BYTES))
        is_one = len(parts) == 1
        with nullcontext() if is_one else transaction.atomic(using=self.alias, savepoint=False):
            return {row[0] for part in parts for row in self.fetch("job_add", arrays_of(part))}

    def insert_fresh(self, job: Message) -> None:
        connection = self.connection
        if connection.settings_dict["OPTIONS"].get("server_side_binding"):
            # server-side binding does not allow two statements in one message
            self.insert_jobs([job])
            return
        parameters = {
            "id": job.job_id,
            "task": job.task,
            "queue": job.queue,
            "priority": job.priority,
            "package": job.package,
            "enqueued_at": datetime.fromtimestamp(job.enqueued_at, UTC).isoformat(),
            "rank": -job.priority,
        }
        notice = wake.NOTICE if wake.may_notify(self.alias) else ""
        insert = Insert(statement("job_add_fresh"), kept=statement("job_add_kept"))
        if send_past_cursor(connection, insert, parameters, notice):
            wake.note_notice(self.alias)

    inserts_ended = True

    def insert_ended(self, jobs: JobColumns) -> set[str]:
        arrays = called_arrays(jobs) | ended_arrays(jobs)
        return {row[0].hex for row in self.fetch("job_add_ended", arrays)}

    def ensure_jobs(self, jobs: JobColumns) -> None:
        self.fetch("job_ensure", called_arrays(jobs))

    def finish_jobs(self, jobs: JobColumns) -> Callable[[], object]:
        arrays = ended_arrays(jobs)
        return lambda: self.fetch("job_finish", arrays)

    def end_steps(self, ends: Sequence[StepEnd]) -> None:
        names = ("ids", "states", "step_values", "causes")
        arrays = columns([tuple(one) for one in ends], len(names))
        self.fetch("step_end", dict(zip(names, arrays, strict=True)))

    # -- leases -----------------------------------------------------------------------------------

    claims_by_marks = True

    def claim_ready(
        self,
        ready: models.QuerySet[Any],
        queues: Sequence[str],
        spans: Mapping[str, list[Any]],
        limit: int,
        leasing: Leasing,
    ) -> list[Claim] | None:
        return self.fetch("claim", {**spans, "limit": limit, **leasing._asdict()})

    def extend_leases(
        self, leases: models.QuerySet[Any], keys: Sequence[LeaseKey], lease_us: int
    ) -> set[LeaseKey]:
        rows = self._fetch_each("claimed_extend", "leases", keys, lease_us=lease_us)
        return {(row[0], row[1]) for row in rows}

    def end_leases(
        self, leases: models.QuerySet[Any], digits: Sequence[str], lease_ids: Sequence[int]
    ) -> Sequence[tuple[Any, ...]]:
        pairs = zip(digits, lease_ids, strict=True)
        if len(set(digits)) < len(digits):
            keys = [(UUID(one), lease_id) for one, lease_id in pairs]
            return self._fetch_each("claimed_ack", "leases", keys)
        by_id = [f'"{one}":{lease}' for one, lease in pairs]
        arrays = {"job_ids": list_literal(digits), "leases": list_literal(by_id)}
        return self.fetch("claimed_ack", arrays)

    def release(
        self, leases: models.QuerySet[Any], returns: Sequence[Released]
    ) -> list[tuple[Any, ...]]:
        return self._fetch_each("claimed_release", "returns", returns)

    def claim_expired(
        self, leases: models.QuerySet[Any], limit: int, leasing: Leasing
    ) -> list[Claim]:
        return self.fetch("claimed_claim_expired", {"limit": limit, **leasing._asdict()})

    def _fetch_each(
        self, name: str, word: str, keyed: Sequence[tuple[Any, ...]], **parameters: int
    ) -> list[tuple[Any, ...]]:
        """Run a statement that finds each job's values by its id.

        Args:
            name: name of the statement.
            word: name of the statement's parameter for the values.
            keyed: for each job: its id, its lease id and further numbers.
            parameters: the statement's other parameters.
        """
        found = []
        for some in each_job_once(keyed):
            by_id = ",".join([f'"{row[0].hex}":{_in_json(row)}' for row in some])
            job_ids = [row[0] for row in some]
            found += self.fetch(name, {"job_ids": job_ids, word: f"{{{by_id}}}", **parameters})
        return found

    # -- jobs that wait ---------------------------------------------------------------------------

    def move_due(
        self, deferred: models.QuerySet[Any], limit: int, from_us: int
    ) -> list[tuple[Any, ...]]:
        return self.fetch("deferred_promote", {"limit": limit, "from_us": from_us})

    # -- keys and dead letters --------------------------------------------------------------------

    def take_new_keys(self, takings: Sequence[Taking]) -> bool:
        return len(self.fetch("unique_insert", taking_arrays(takings))) == len(takings)

    def take_over_keys(
        self, keys: models.QuerySet[Any], takings: Sequence[Taking], condition: Condition
    ) -> bool:
        arrays = taking_arrays(takings)
        rows = self.fetch("unique_take_over", arrays, condition=condition.sql)
        return len(rows) == len(takings)

    def take_key_and_insert(
        self, taking: Taking, condition: Condition, job: Message, letter: Mapping[str, Any]
    ) -> bool:
        if job.needs:
            return False
        parameters = {**taking._asdict(), **parameters_of(job), **letter}
        return bool(self.fetch("unique_add_one", parameters, condition=condition.sql))

    def upsert_letters(
        self, kinds: Mapping[str, str], letters: Sequence[Sequence[Any]], newest: Sequence[str]
    ) -> None:
        arrays = ", ".join(f"%s::{kind}[]" for kind in kinds.values())
        text = self._letters_text(kinds, f"SELECT * FROM unnest({arrays})", newest)  # noqa: S608 - our own names
        given = zip(*(map(_as_text, letter) for letter in letters), strict=True)
        self._write(text, [array_literal(column) for column in given])

    # -- guards -----------------------------------------------------------------------------------

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

    def keys_being_made(self, keys: models.QuerySet[Any], key_ids: Collection[UUID]) -> set[UUID]:
        """Find them by inserting the keys for a moment, in groups that are halved if another
        transaction is in the way. After PROBES tries, the rest count as being made."""
        groups, found, probes = [sorted(key_ids)], set[UUID](), 0
        while groups and probes < PROBES:
            group, probes = groups.pop(), probes + 1
            if not group or self._can_insert(group):
                continue
            if middle := len(group) // 2:
                groups += [group[:middle], group[middle:]]
            else:
                found.update(group)
        return found.union(*groups)

    def _can_insert(self, key_ids: list[UUID]) -> bool:
        """Return whether these guard keys can be inserted at once. Take the insert back."""
        try:
            with transaction.atomic(self.alias):
                self.fetch("key_probe", {"key_ids": key_ids, "milliseconds": PROBE_MILLISECONDS})
                transaction.set_rollback(True, using=self.alias)
        except OperationalError as error:
            if is_locked_out(error):
                return False
            raise
        return True

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

    def claim_free_keys(self, job_ids: Sequence[UUID], leasing: Leasing) -> list[Claim]:
        with self.deciding():
            return self.fetch("claim_free_keys", {"job_ids": list(job_ids), **leasing._asdict()})

    def end_needs(self, need_ids: Sequence[UUID]) -> list[tuple[UUID, str, int]] | None:
        return self.fetch("need_end", {"need_ids": list(need_ids)})

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
            "now_us": decisions.now_us,
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


def _as_text(value: Any) -> Any:
    return aware(value).isoformat() if isinstance(value, datetime) else value


def _in_json(row: tuple[Any, ...]) -> str:
    """Return a job's values without its id, as JSON."""
    return str(row[1]) if len(row) == 2 else str(list(row[1:]))


def _has_psycopg3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)
