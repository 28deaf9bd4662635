"""PostgreSQL's plans for the frequent statements: with many waiting jobs none may scan a whole
table, whether the tables were analyzed or not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
from django.db import connection

from stoker.brokers.contract import ClaimRequest, Delivery, Return
from stoker.models.job import JobColumns
from stoker.store.engines import engine_of
from stoker.store.statements import set_deadlines

from tests.conformance.stands import OrmStand, message

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

ROWS = 100_000
LARGE = {"stoker_job", "stoker_ready", "stoker_deferred", "stoker_claimed"}

KEYS = dict.fromkeys(LARGE, "job_id") | {"stoker_job": "id"}

EMPTY = "TRUNCATE stoker_job, stoker_ready, stoker_deferred, stoker_claimed CASCADE"
"""Unlike DELETE, this resets the statistics about the size of the tables."""

FILL = """
INSERT INTO stoker_job (
    id, task, queue, priority, package, enqueued_at, attempts, worker_id, reason
)
SELECT lpad(to_hex(n), 32, '0')::uuid, 'tests.app.tasks.nothing', 'default', 0,
       repeat('p', 200)::bytea, now(), 0, '', ''
FROM generate_series(1, %(rows)s) AS n;

INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes)
SELECT lpad(to_hex(n), 32, '0')::uuid, CASE n %% 3 WHEN 0 THEN 'mail' ELSE 'default' END,
       n %% 5, 0, 0
FROM generate_series(1, %(rows)s) AS n;

INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes)
SELECT gen_random_uuid(), CASE WHEN n < 1000 THEN n ELSE 9e15 + n END, 'default', 0, 0, 0
FROM generate_series(1, %(rows)s) AS n;

INSERT INTO stoker_claimed (
    job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes
)
SELECT gen_random_uuid(), n, gen_random_uuid(), 9e15, 'default', 0, 1, 0
FROM generate_series(1, 10000) AS n;
"""


@pytest.fixture
def stand() -> Iterator[OrmStand]:
    """Yield the ORM broker with many jobs in every table. Autovacuum is off meanwhile: if it came
    while a table is empty, PostgreSQL would believe so afterwards."""
    with connection.cursor() as cursor:
        for table in sorted(LARGE):
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        cursor.execute(EMPTY)
        cursor.execute(FILL, {"rows": ROWS})
    yield OrmStand()
    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        for table in sorted(LARGE):
            cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


NOT_FOR_EACH_JOB = {"states", "withdraw"}
"""Statements that operators cause. For a table that seems to be empty, PostgreSQL expects the same
cost of the right index and of another one that it would read to the end."""


@pytest.mark.parametrize("belief", ["as loaded", "as analyzed", "empty"])
def test_no_statement_scans_a_whole_table(stand: OrmStand, belief: str) -> None:
    with connection.cursor() as cursor:
        if belief == "as analyzed":
            cursor.execute("ANALYZE")
        elif belief == "empty":  # as after a vacuum in a quiet time
            for table in LARGE:
                cursor.execute(f"DELETE FROM {table}")
                cursor.execute(f"VACUUM (TRUNCATE OFF) {table}")
            cursor.execute(FILL, {"rows": ROWS})
    wrong = []
    for count in (1, 50, 400, 1_000):
        for name, verb in verbs(stand, count):
            if belief == "empty" and name in NOT_FOR_EACH_JOB:
                continue
            with plans() as made:
                verb()
            assert made, f"{name} ran no statement"
            for sql, plan in made:
                if read := sorted(whole_tables(plan) & LARGE):
                    wrong.append(f"{name} of {count} reads all of {read}:\n{sql}\n{plan}")
    assert not wrong, "\n\n".join(wrong)


def test_claim_walks_the_index_and_does_not_sort(stand: OrmStand, cluster_connection: None) -> None:
    with plans() as made:
        stand.claim(500, "default", "mail")

    (plan,) = [plan for sql, plan in made if "INSERT INTO stoker_claimed" in sql]
    walked = nodes(plan, "Relation Name", "stoker_ready")
    assert {node["Node Type"] for node in walked} <= {"Index Scan", "Tid Scan", "ModifyTable"}


@pytest.fixture
def keeping_stand(lasting_watermarks: None) -> Iterator[OrmStand]:
    """Yield the ORM broker with a few jobs and a connection like that of a pusher or a monitor."""
    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        cursor.execute(FILL, {"rows": 60})
    stand = OrmStand()
    with connected_as_a_cluster(stand, keeps_statements=True):
        yield stand
    with connection.cursor() as cursor:
        cursor.execute(EMPTY)


def test_kept_plan_uses_an_index_though_tables_were_small(
    keeping_stand: OrmStand,
) -> None:
    """The plan is made while a queue is short or empty, and used when it is long."""
    for _, verb in verbs(keeping_stand, 4):
        verb()
    small = kept_plans()
    with connection.cursor() as cursor:
        for table in LARGE:
            cursor.execute(f"DELETE FROM {table}")
            cursor.execute(f"VACUUM {table}")
    empty = kept_plans()
    assert empty.keys() == small.keys()
    assert len(small) >= 6, "at least claim, extend, finish, ack, release and enqueue"
    for sql, plan in [*small.items(), *empty.items()]:
        read = sorted(whole_tables(plan) & LARGE)
        assert not read, f"reads all of {read}:\n{sql}\n{plan}"


def kept_plans() -> dict[str, Any]:
    """Return the plan of each prepared statement of this session."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, statement, parameter_types::varchar[] FROM pg_prepared_statements"
        )
        plans = {}
        for name, sql, types in cursor.fetchall():
            values = ", ".join(f"NULL::{one}" for one in types)
            cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE {name}({values})")
            plans[sql] = cursor.fetchone()[0]
        return plans


@pytest.fixture
def cluster_connection(stand: OrmStand) -> Iterator[None]:
    """Connect like a process of a cluster."""
    with connected_as_a_cluster(stand):
        yield


@contextmanager
def connected_as_a_cluster(stand: OrmStand, *, keeps_statements: bool = False) -> Iterator[None]:
    before = connection.settings_dict
    connection.settings_dict = deepcopy(before)
    set_deadlines(stand.settings, keeps_statements=keeps_statements)
    yield
    connection.close()
    connection.settings_dict = before


def verbs(stand: OrmStand, count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a call of each method with its name, in the order of a job's life."""
    claimed: list[Delivery] = []

    def claim() -> None:
        claimed.extend(stand.claim(count, "default", "mail"))

    yield "claim", claim
    yield (
        "claim from every queue",
        lambda: stand.broker.claim(ClaimRequest(count, holder=stand.holder, lease_seconds=60)),
    )
    leases = [delivery.lease for delivery in claimed]
    assert len(leases) == count
    yield "extend", lambda: stand.broker.extend(leases, lease_seconds=60)
    yield (
        "finish",
        engine_of("default").finish_jobs(
            JobColumns(
                job_ids=[lease.job_id.hex for lease in leases],
                statuses=["SUCCESSFUL"] * len(leases),
                attempts=[1] * len(leases),
                worker_ids=["worker"] * len(leases),
                started_at=[None] * len(leases),
                finished_at=[0.0] * len(leases),
                values=[None] * len(leases),
                reasons=[""] * len(leases),
            )
        ),
    )
    half = count // 2
    yield "ack", lambda: stand.broker.settle(leases[half:])
    back = [Return(lease, delay_seconds=number % 2) for number, lease in enumerate(leases[:half])]
    if back:
        yield "release", lambda: stand.broker.settle(again=back)
    yield "enqueue", lambda: stand.broker.enqueue([message() for _ in range(count)])
    yield "states", lambda: stand.broker.states([lease.job_id for lease in leases[:20]])
    yield "withdraw", lambda: stand.broker.withdraw([uuid.uuid4() for _ in range(min(count, 50))])
    yield "next due", stand.broker.next_due_seconds


@contextmanager
def plans() -> Iterator[list[tuple[str, Any]]]:
    """Collect the plans of the statements that run."""
    made: list[tuple[str, Any]] = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        verb = sql.lstrip("(").split()[0]
        if not many and verb in {"WITH", "SELECT", "UPDATE", "DELETE", "INSERT"}:
            execute(f"EXPLAIN (FORMAT JSON) {sql}", params, many, context)
            made.append((sql, context["cursor"].fetchone()[0]))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield made


def whole_tables(plan: Any) -> set[str]:
    """Return the tables that a plan scans completely."""
    if isinstance(plan, list):
        return set().union(*map(whole_tables, plan))
    if not isinstance(plan, dict):
        return set()
    read = whole_tables(list(plan.values()))
    kind = plan.get("Node Type", "")
    # An index without a condition but with a filter is read from end to end.
    is_walked = kind.startswith("Index") and "Filter" in plan and "Index Cond" not in plan
    return read | {plan["Relation Name"]} if kind == "Seq Scan" or is_walked else read


def nodes(plan: Any, key: str, value: str) -> list[Any]:
    """Return the nodes of a plan that have this value."""
    parts = plan if isinstance(plan, list) else plan.values() if isinstance(plan, dict) else []
    found = [node for part in parts for node in nodes(part, key, value)]
    return [plan, *found] if isinstance(plan, dict) and plan.get(key) == value else found
