"""Dead letters on a running cluster."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from django.db import connection

from stoker import dead_letters
from stoker.conf import settings_for
from stoker.logs.lines import log_page
from stoker.models import DeadLetter, Job, LogChunk

from tests.app.frail import fail_and_wait_for, mend_in_a_transaction, mend_itself
from tests.app.models import Account
from tests.app.tasks import add, fail
from tests.app.wordy import log_and_print
from tests.cluster.clusters import running_cluster, wait_for
from tests.cluster.ends import end_of

pytestmark = pytest.mark.django_db(transaction=True)


def state() -> str:
    return DeadLetter.objects.values_list("state", flat=True).first() or "none"


def test_upkeep_requeues_a_dead_letter_by_its_policy(tmp_path: Path) -> None:
    mend_itself.enqueue()
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: state() == "resolved", cluster.tail)
    letter = DeadLetter.objects.get()
    assert (letter.requeued_count, letter.failure_count) == (1, 1)
    assert "1 dead letter was requeued automatically" in cluster.text()


def test_success_of_an_atomic_task_resolves_its_dead_letter(tmp_path: Path) -> None:
    mend_in_a_transaction.enqueue()
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: state() == "open", cluster.tail)
        Account.objects.create(total=1)
        dead_letters.requeue(DeadLetter.objects.get().pk)
        wait_for(lambda: state() == "resolved", cluster.tail)


@pytest.mark.sqlite
def test_hook_that_does_not_return_delays_no_recording(tmp_path: Path) -> None:
    until = tmp_path / "may_return"
    fail_and_wait_for.enqueue(str(until))
    with running_cluster(tmp_path) as cluster:
        crew = cluster.wait_for_crew()
        wait_for(until.with_suffix(".began").exists, cluster.tail)
        results = add.enqueue_many([((1, 2), {})] * 50)
        for result in results:
            wait_for(lambda result=result: add.get_result(result.id).is_finished, cluster.tail)
        assert cluster.crew()["monitor"] == crew["monitor"], cluster.tail()
        assert cluster.stop() == 0
        assert "receiver or hook was dropped" not in cluster.text()
    until.touch()


@pytest.fixture
def three_byte_characters() -> Iterator[None]:
    """Give the tables the character set that was once usual on MariaDB and MySQL, and give the test
    the same tables as before at the end."""
    names = ["stoker_job", "stoker_attempt", "stoker_deadletter", "stoker_logchunk"]
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"CREATE TABLE kept_{name} LIKE {name}")
            cursor.execute(f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb3")
        yield
        for name in names:
            cursor.execute(f"DROP TABLE {name}")
            cursor.execute(f"RENAME TABLE kept_{name} TO {name}")


@pytest.mark.mariadb
@pytest.mark.usefixtures("three_byte_characters")
def test_texts_that_tables_cannot_hold_are_recorded_with_escapes(tmp_path: Path) -> None:
    with running_cluster(tmp_path, WORKERS=1, LOGS={"level": "INFO"}) as cluster:
        end = end_of(fail.enqueue("no \N{FIRE}"), cluster)
        wordy = log_and_print.enqueue("\N{FIRE}")
        wait_for(LogChunk.objects.exists, cluster.tail)
    assert end.job.status == Job.Status.FAILED
    assert end.attempts[-1].message == "no \\U0001f525"
    assert end.dead_letter is not None
    assert end.dead_letter.exception_class == "builtins.ValueError"
    lines = log_page(settings_for(), UUID(wordy.id)).lines
    assert "printed \N{FIRE}" in [one.text for one in lines], "lines have escapes of JSON"
