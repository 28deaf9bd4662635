"""Dead letters on a running cluster."""

from pathlib import Path

import pytest

from stoker import dead_letters
from stoker.models import DeadLetter

from tests.app.frail import fail_and_wait_for, mend_in_a_transaction, mend_itself
from tests.app.models import Account
from tests.app.tasks import add
from tests.cluster.clusters import running_cluster, wait_for

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
