"""Dead letters and what a running cluster does about them."""

from pathlib import Path

import pytest

from stoker import dead_letters
from stoker.models import DeadLetter

from tests.app.frail import mend_in_a_transaction, mend_itself
from tests.app.models import Account
from tests.cluster.clusters import running_cluster, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def state() -> str:
    return DeadLetter.objects.values_list("state", flat=True).first() or "none"


def test_a_dead_letter_is_sent_again_by_the_clusters_upkeep(tmp_path: Path) -> None:
    mend_itself.enqueue()
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: state() == "resolved", cluster.tail)
    letter = DeadLetter.objects.get()
    assert (letter.requeued_count, letter.failure_count) == (1, 1)
    assert "1 dead letters were sent again by themselves" in cluster.text()


def test_an_atomic_task_resolves_its_entry(tmp_path: Path) -> None:
    mend_in_a_transaction.enqueue()
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: state() == "open", cluster.tail)
        Account.objects.create(total=1)
        dead_letters.requeue(DeadLetter.objects.get().pk)
        wait_for(lambda: state() == "resolved", cluster.tail)
