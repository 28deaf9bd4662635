"""Upkeep rescues jobs while a transaction of user code holds the key of one of them."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from django.db import connection

from stoker import Lock
from stoker.brokers.adapters import broker_for
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import settings_for
from stoker.models import Claimed, GuardKey

from tests.app.tasks import nothing
from tests.guards.sessions import Session, session
from tests.integration.work import claim

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def other() -> Iterator[Session]:
    with session() as opened:
        yield opened


@pytest.fixture
def _impatient() -> Iterator[None]:
    """Give up on a lock soon, as a cluster does after some seconds."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'")
        yield
        cursor.execute("RESET lock_timeout")


def let_leases_end() -> None:
    Claimed.objects.update(leased_until_us=0)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_job_whose_key_is_locked_does_not_prevent_the_rescue_of_others(
    place: int, other: Session
) -> None:
    tasks = [nothing] * 3
    tasks[place] = nothing.using(lock=Lock("held"))
    locked = [UUID(task.enqueue().id) for task in tasks][place]
    assert len(claim()) == 3
    let_leases_end()
    settings = settings_for()
    upkeep = Upkeep(Plan(), settings, broker_for(settings), lambda: None)
    upkeep.rescuing._clock.can_be_trusted()
    other.begin()
    other.do(lambda: list(GuardKey.objects.select_for_update()))
    upkeep.rescuing.rescue()
    assert [one.job_id for one in Claimed.objects.all()] == [locked]
    other.roll_back()
    let_leases_end()
    assert upkeep.rescuing.rescue() == 1
    assert not Claimed.objects.exists()
