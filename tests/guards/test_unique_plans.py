"""What PostgreSQL plans for enqueues of unique jobs: with many keys and jobs, none may read a table
from end to end, whether the tables were analyzed or not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from stoker import Unique
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.models import Claimed, Job, UniqueKey

from tests.app.tasks import echo
from tests.conformance.test_plans import EMPTY, FILL, LARGE, ROWS, plans, whole_tables

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

LIST_OF_THE_ORM = 500
"""For a longer list the planner may prefer to read the whole table."""

FILL_KEYS = """
INSERT INTO stoker_unique (key_id, name, job_id, taken_us, until_us)
SELECT gen_random_uuid(), 'unique key', lpad(to_hex(n), 32, '0')::uuid, n, 0
FROM generate_series(1, %(rows)s) AS n;

INSERT INTO stoker_blocked (job_id, key_id, queue, rank, attempts, crashes, guards)
SELECT gen_random_uuid(), gen_random_uuid(), 'default', 0, 0, 0, 1
FROM generate_series(1, %(rows)s) AS n;
"""


@pytest.fixture
def many_keys() -> Iterator[None]:
    empty = f"{EMPTY}; TRUNCATE stoker_unique, stoker_blocked, stoker_need, stoker_key"
    with connection.cursor() as cursor:
        cursor.execute(empty)
        cursor.execute(FILL, {"rows": ROWS})
        cursor.execute(FILL_KEYS, {"rows": ROWS})
    yield
    with connection.cursor() as cursor:
        cursor.execute(empty)


@pytest.mark.usefixtures("many_keys")
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["as loaded", "analyzed"])
def test_no_statement_scans_a_whole_table(is_analyzed: bool) -> None:
    if is_analyzed:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    large, wrong = LARGE | {"stoker_unique", "stoker_blocked"}, []
    for count in (1, 50, 1_000):
        for name, verb in verbs(count):
            with plans() as made:
                verb()
            assert made, f"{name} ran no statement"
            for sql, plan in made:
                is_ours = sql.startswith("--") or "FOR SHARE" in sql or "FOR UPDATE" in sql
                if count > LIST_OF_THE_ORM and not is_ours:
                    continue
                if read := sorted(whole_tables(plan) & large):
                    wrong.append(f"{name} of {count} reads all of {read}:\n{sql}\n{plan}")
    assert not wrong, "\n\n".join(wrong)


def verbs(count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each possible outcome of an enqueue, with its name."""
    queue = f"unique {count}"

    def enqueue(mode: str) -> None:
        unique = Unique(f"{count} {{value}}", on_conflict=mode)
        task = echo.using(unique=unique, queue_name=queue)
        with transaction.atomic():
            if count == 1:
                task.enqueue(1)
            else:
                task.enqueue_many([((number,), {}) for number in range(count)])

    yield "enqueue", lambda: enqueue("keep")
    yield "keep", lambda: enqueue("keep")
    yield "replace", lambda: enqueue("replace")
    assert len(claimed(queue)) == count
    Job.objects.filter(queue=queue).update(status="SUCCESSFUL")
    Claimed.objects.all().delete()
    yield "enqueue again", lambda: enqueue("keep")
    yield "upkeep", lambda: UniqueKey.objects.forget(None, 500)


def claimed(queue: str) -> list[Delivery]:
    broker = broker_for(settings_for())
    return broker.claim(ClaimRequest(5_000, holder=uuid.uuid4(), lease_seconds=60, queues=[queue]))
