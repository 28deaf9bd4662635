"""What one thread may ask about the connection that another is using."""

import uuid

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from stoker.models import GuardKey
from stoker.store.engines import engine_for

from tests.guards.sessions import PATIENCE_SECONDS, Session, session, wait_until_waiting

pytestmark = pytest.mark.django_db(transaction=True)


def opened_by(session: Session) -> BaseDatabaseWrapper:
    """Return the session's connection, open and in no transaction. The statements that opened it
    might have begun one, so the engine asks the server once."""
    theirs = session.do(lambda: connections["default"])
    session.do(theirs.ensure_connection)
    assert not session.do(lambda: engine_for(theirs).is_in_transaction(theirs))
    return theirs


@pytest.mark.postgres
@pytest.mark.mariadb
def test_thread_asks_whether_a_busy_connection_may_be_in_a_transaction() -> None:
    """A worker does this when one of several async tasks ends. mysqlclient 2.3 raises an error for
    a connection that is in use."""
    GuardKey.objects.create(id=uuid.uuid4(), kind="lock")
    with session() as other, session() as busy:
        theirs = opened_by(busy)
        other.begin()
        other.do(lambda: GuardKey.objects.select_for_update().get())
        waiting = busy.start(lambda: GuardKey.objects.update(name="changed"))
        wait_until_waiting()
        engine_for(theirs).may_be_in_transaction(theirs)
        other.roll_back()
        assert waiting.result(PATIENCE_SECONDS) == 1
        assert not engine_for(theirs).may_be_in_transaction(theirs)


def test_connection_that_its_thread_is_closing_is_in_no_transaction() -> None:
    """A worker asks this when one of several async tasks ends. An error would fail that task."""
    with session() as other:
        theirs = opened_by(other)
        other.do(theirs.connection.close)
        try:
            assert not engine_for(theirs).may_be_in_transaction(theirs)
        finally:
            theirs.connection = None
