"""MongoDB only: lost answers, repeated relays, invalid URLs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from urllib.parse import urlsplit
from uuid import uuid4

import dns.resolver
import pytest
from bson import decode, encode
from bson.datetime_ms import DatetimeMS
from pymongo.errors import AutoReconnect

from stoker.brokers.adapters import adapter_for
from stoker.brokers.contract import BrokerJob, ClaimRequest, Lease, Return
from stoker.brokers.mongodb import documents
from stoker.brokers.mongodb.broker import MongodbBroker
from stoker.brokers.mongodb.documents import Connection, selections
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError
from stoker.store.wake import NoWake

from tests.cluster.clusters import wait_for
from tests.conformance.server_stands import MongodbStand, mongodb_url
from tests.conformance.stands import message
from tests.conformance.threads import PATIENCE_SECONDS
from tests.servers.mongodb import PrivateMongodb
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.sqlite, pytest.mark.mongodb]


@pytest.fixture
def stand() -> Iterator[MongodbStand]:
    made = MongodbStand()
    yield made
    made.clear()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    parts = urlsplit(mongodb_url())
    with Proxy(parts.hostname or "127.0.0.1", parts.port or 27017) as made:
        yield made


@pytest.fixture
def far(stand: MongodbStand, proxy: Proxy) -> Iterator[MongodbBroker]:
    """Give a broker that reaches the same jobs through the proxy."""
    url = f"mongodb://127.0.0.1:{proxy.port}{urlsplit(mongodb_url()).path}?directConnection=true"
    broker = MongodbBroker(Settings(broker=url, cluster=stand.settings.cluster))
    broker.ping()
    yield broker
    broker.close()


class TestLostAnswers:
    def test_enqueue_with_lost_answer_adds_each_job_once(
        self, stand: MongodbStand, far: MongodbBroker, proxy: Proxy
    ) -> None:
        messages = [message() for _ in range(3)]
        proxy.lose_answer_to(b"insert")
        with suppress(BrokerUnavailable):  # a standalone server does not retry writes
            far.enqueue(messages)
        far.enqueue(messages)
        assert proxy.lost.is_set(), "nothing was lost"
        assert [one.job_id for one in stand.claim()] == [one.job_id for one in messages]

    def test_claim_with_lost_answer_is_found_by_its_holder(
        self, stand: MongodbStand, far: MongodbBroker, proxy: Proxy
    ) -> None:
        put = stand.put(3)
        proxy.lose_answer_to(b"kept")
        with pytest.raises(BrokerUnavailable, match="could not process the request"):
            far.claim(ClaimRequest(10, holder=stand.holder, lease_seconds=60, queues=["default"]))
        held = far.held_by(stand.holder)
        assert [(one.job_id, one.attempt) for one in held] == [(job_id, 1) for job_id in put]
        far.settle(again=[Return(one.lease, attempts=0) for one in held])
        assert [one.attempt for one in stand.claim()] == [1, 1, 1]

    def test_settle_can_be_repeated(
        self, stand: MongodbStand, far: MongodbBroker, proxy: Proxy
    ) -> None:
        stand.put(2)
        over, again = stand.claim()
        proxy.lose_answer_to(b"deletes")
        with pytest.raises(BrokerUnavailable):
            far.settle([over.lease], [Return(again.lease, attempts=1)])
        far.settle([over.lease], [Return(again.lease, attempts=1)])
        assert stand.where(over.job_id) is None
        assert [(one.job_id, one.attempt) for one in stand.claim()] == [(again.job_id, 2)]

    def test_cut_connections_are_reopened(
        self, stand: MongodbStand, far: MongodbBroker, proxy: Proxy
    ) -> None:
        proxy.cut()
        job = message()
        with suppress(BrokerUnavailable):  # a standalone server does not retry writes
            far.enqueue([job])
        far.enqueue([job])
        assert len(stand.claim()) == 1

    def test_silent_connection_raises_after_its_deadline(
        self, stand: MongodbStand, proxy: Proxy
    ) -> None:
        """Nothing is lost: if the claim reached the server, its holder finds the jobs."""
        url = (
            f"mongodb://127.0.0.1:{proxy.port}{urlsplit(mongodb_url()).path}?directConnection=true"
        )
        settings = Settings(broker=url, cluster=stand.settings.cluster, database_seconds=3)
        far = MongodbBroker(settings)
        far.ping()
        put = stand.put(2)
        proxy.hold()
        with pytest.raises(BrokerUnavailable, match="could not process the request"):
            far.claim(ClaimRequest(10, holder=stand.holder, lease_seconds=60, queues=["default"]))
        proxy.release()

        def all_are_claimed() -> bool:
            """Retry: a request that was sent before may arrive at any moment."""
            with suppress(BrokerUnavailable):
                held = far.held_by(stand.holder)
                far.settle(again=[Return(one.lease, attempts=0) for one in held])
                claimed = far.claim(
                    ClaimRequest(10, holder=stand.holder, lease_seconds=60, queues=["default"])
                )
                assert {one.attempt for one in claimed} <= {1}
                return [one.job_id for one in claimed] == put
            return False

        wait_for(all_are_claimed)
        far.close()


class TestWake:
    def test_wake_that_was_opened_while_the_server_is_away_listens_later(
        self, stand: MongodbStand, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.brokers.mongodb.broker.RECONNECT_SECONDS", 0.01)
        parts = urlsplit(mongodb_url())
        url = f"mongodb://127.0.0.1:{proxy.port}{parts.path}?directConnection=true"
        settings = Settings(broker=url, cluster=stand.settings.cluster, database_seconds=0.5)
        proxy.lead_to("127.0.0.1", 1)
        broker = MongodbBroker(settings)
        with closing(broker), closing(broker.open_wake()) as wake:
            proxy.lead_to(parts.hostname or "", parts.port or 0)
            wait_for(lambda: stand.put() and wake.is_due(), lambda: "it does not listen")

    def test_server_without_change_streams_is_only_polled(self) -> None:
        with PrivateMongodb(replica_set="") as server:
            broker = MongodbBroker(Settings(broker=server.url))
            assert isinstance(broker.open_wake(), NoWake)
            broker.close()


class TestRelays:
    @pytest.mark.parametrize("end", ["ack", "withdraw", "purge"])
    def test_relay_repeated_after_the_end_adds_nothing(self, stand: MongodbStand, end: str) -> None:
        job = message()
        stand.broker.relay([job])
        if end == "ack":
            stand.broker.settle([stand.claim_one().lease])
        elif end == "withdraw":
            assert stand.broker.withdraw([job.job_id]) == {job.job_id}
        else:
            assert stand.broker.purge(job.queue) == 1
        stand.broker.relay([job, message(package=b"another")])
        assert [one.package for one in stand.claim()] == [b"another"]
        assert stand.where(job.job_id) is None

    def test_retry_of_relayed_job_runs_again(self, stand: MongodbStand) -> None:
        stand.broker.relay([message()])
        stand.broker.settle(again=[Return(stand.claim_one().lease, attempts=1)])
        assert stand.claim_one().attempt == 2


class TestSettings:
    @pytest.mark.parametrize(
        "url",
        ["mongodb://", "mongodb://host:port/db", "mongodb+srv://host/db?srvMaxHosts=2&colour=red"],
    )
    def test_invalid_url_raises_with_explanation(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match=r"cannot be used: .* Write mongodb:"):
            MongodbBroker(Settings(broker=url))

    @pytest.mark.parametrize("password", ["secret", "sec#ret", "secret[1"])
    def test_unreachable_server_raises_without_showing_the_password(self, password: str) -> None:
        url = f"mongodb://me:{password}@127.0.0.1:1/db"
        settings = Settings(broker=url, database_seconds=0.2)
        broker = MongodbBroker(settings)
        with pytest.raises(BrokerUnavailable) as caught:
            broker.ping()
        broker.close()
        assert str(caught.value).startswith(
            "mongodb://127.0.0.1:1/db could not process the request: "
        )
        assert "sec" not in str(caught.value)

    @pytest.mark.parametrize("query", ["", "?srvServiceName=jobs", "?tls=true&srvMaxHosts=2"])
    def test_unreachable_dns_is_an_outage(
        self, monkeypatch: pytest.MonkeyPatch, query: str
    ) -> None:
        """A wrong setting would end a cluster."""

        def resolve(*_: object, **__: object) -> None:
            raise dns.resolver.NoNameservers

        monkeypatch.setattr(dns.resolver, "resolve", resolve)
        broker = MongodbBroker(Settings(broker=f"mongodb+srv://db.example.com/shop{query}"))
        for call in (broker.ping, lambda: broker.enqueue([message()])):
            with pytest.raises(BrokerUnavailable, match=r"mongodb\+srv://db.example.com/shop"):
                call()
        broker.open_wake().close()
        broker.close()

    def test_threads_wait_for_an_unreachable_server_at_the_same_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They would wait in turn if one held a lock meanwhile."""
        both_wait = threading.Barrier(2)

        class Jobs:
            def create_indexes(self, _: object) -> None:
                both_wait.wait(PATIENCE_SECONDS)
                raise AutoReconnect("It is away.")

        monkeypatch.setattr(documents, "connect", lambda _: (object(), Jobs()))
        connection = Connection(Settings(broker="mongodb://host/db"))

        def ask() -> str:
            with pytest.raises(AutoReconnect) as raised:
                connection.jobs()
            return str(raised.value)

        with ThreadPoolExecutor(2) as threads:
            answers = [threads.submit(ask) for _ in range(2)]
        assert [one.result() for one in answers] == ["It is away."] * 2

    def test_missing_driver_raises_with_install_command(
        self, not_installed: Callable[[str, str], None]
    ) -> None:
        not_installed("pymongo", "stoker.brokers.mongodb")
        with pytest.raises(ConfigurationError, match=r"pip install 'django-stoker\[mongodb\]'"):
            adapter_for(Settings(broker="mongodb://host/db"))


def test_held_jobs_are_listed_without_their_packages(stand: MongodbStand) -> None:
    stand.put(3, queue="mail", priority=5)
    claimed = stand.claim(10, "mail")
    assert stand.broker.held_by(stand.holder) == claimed
    listed = stand.broker.held_by(stand.holder, packages=False)
    assert listed == [one._replace(package=b"") for one in claimed]


def test_foreign_documents_do_not_stop_a_claim(stand: MongodbStand) -> None:
    """A foreign document becomes a dead letter or is ignored."""
    (job_id,) = stand.put()
    broker = stand.broker
    assert isinstance(broker, MongodbBroker)
    jobs = broker._collection()
    half = {"state": "ready", "queue": "default", "rank": 0, "attempts": 0}
    jobs.insert_many([{**half, "_id": "junk"}, {**half, "_id": uuid4(), "package": "text"}])
    jobs.insert_one({**half, "_id": uuid4()})
    assert sorted(one.package for one in stand.claim()) == [b"", b"", b"package"]
    assert job_id in {one.job_id for one in broker.held_by(stand.holder)}


def test_claim_makes_a_page_of_due_jobs_ready(
    stand: MongodbStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.brokers.mongodb.broker.AT_ONCE", 2)
    now = stand.now()
    jobs = [*stand.put(run_after=now - 1), *stand.put(run_after=now - 3)]
    jobs += stand.put(run_after=now - 2)
    stand.put(run_after=now + 600)
    claimed = [[one.job_id for one in stand.claim(9)] for _ in range(3)]
    assert [set(some) for some in claimed] == [{jobs[1], jobs[2]}, {jobs[0]}, set()]


def test_damaged_documents_do_not_stop_a_pusher(stand: MongodbStand) -> None:
    """A field of the wrong type counts as missing."""
    (job_id,) = stand.put()
    (deferred,) = stand.put(run_after=stand.now() + 600)
    broker = stand.broker
    assert isinstance(broker, MongodbBroker)
    jobs = broker._collection()
    texts = {"rank": "high", "attempts": "one", "crashes": [], "bytes": "many", "package": b"p"}
    damaged = {"_id": uuid4(), "state": "ready", "queue": "q" * 101, **texts}
    undue = {"_id": uuid4(), "state": "deferred", "package": b"p", "due": "tomorrow"}
    held = {"_id": uuid4(), "state": "running", "rank": 2**40, "holder": stand.holder}
    stateless = {"_id": uuid4(), "queue": "default"}
    junk = {"_id": "junk", "state": "deferred", "queue": "default"}
    jobs.insert_many([damaged, undue, held, stateless, junk])

    sizes = broker.sizes()
    waiting = {one for ids in broker.waiting_in("default") for one in ids}
    (claimed,) = stand.claim(10, str(damaged["queue"]))

    assert {queue: sum(size.values()) for queue, size in sizes.items()} == {"default": 3, "": 3}
    assert waiting == {job_id, deferred}
    assert claimed[2:7] == (b"p", "", 0, 1, 0)
    assert stand.claim_one().job_id == job_id
    assert {one.job_id: one.priority for one in broker.held_by(stand.holder)} == {
        job_id: 0,
        damaged["_id"]: 0,
        held["_id"]: 0,
    }
    assert broker.jobs([undue["_id"]]) == {undue["_id"]: BrokerJob(b"p", None)}
    assert broker.states([stateless["_id"], deferred]) == {deferred: "deferred"}
    assert (broker.next_due_seconds() or 0.0) > 0.0
    jobs.delete_one({"_id": deferred})
    assert broker.next_due_seconds() is None


def test_times_and_texts_that_python_cannot_represent_are_read(stand: MongodbStand) -> None:
    client, jobs = documents.connect(stand.settings)
    client.close()
    raw = encode({"due": DatetimeMS(2**62), "queue": "before?"}).replace(b"before?", b"before\xff")
    found = decode(raw, jobs.codec_options)
    assert (found["due"].year, found["queue"]) == (9999, "before\ufffd")


def test_ids_of_an_update_are_sorted() -> None:
    """Two clusters that end the same jobs would deadlock on a server that locks."""
    leases = {Lease(uuid4(), str(lease_id)) for lease_id in range(3) for _ in range(50)}
    for query in selections(leases):
        ids = query["_id"]["$in"]
        assert ids == sorted(ids)
        assert len(ids) == 50
