"""Disque only: several nodes, of which some fail; lost answers; URLs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from stoker.brokers.adapters import adapter_for
from stoker.brokers.disque import nodes as disque_nodes
from stoker.brokers.disque.nodes import DisqueNode, Nodes
from stoker.brokers.disque.transport import DisqueTransport
from stoker.brokers.transport import Parcel
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError

from tests.cluster.clusters import wait_for
from tests.conformance.stands import message
from tests.servers.disque import PrivateDisque, url_of
from tests.servers.disque import disque_nodes as started_nodes
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.sqlite, pytest.mark.disque]


def transport_at(url: str, **options: Any) -> DisqueTransport:
    cluster = f"test-{uuid.uuid4().hex}"
    return DisqueTransport(Settings(broker=url, cluster=cluster, **options))


@pytest.fixture
def nodes() -> Iterator[list[PrivateDisque]]:
    with started_nodes(3) as made:
        for node in made:
            wait_for(lambda node=node: _known_to(node) == 3, lambda: "the nodes do not meet")
        yield made


@pytest.fixture
def transport(nodes: list[PrivateDisque]) -> Iterator[DisqueTransport]:
    with closing(transport_at(url_of(nodes), lease_seconds=60, database_seconds=60)) as made:
        yield made


class TestSeveralNodes:
    def test_job_sent_to_one_node_is_received_from_another(
        self, nodes: list[PrivateDisque], transport: DisqueTransport
    ) -> None:
        jobs = [message() for _ in range(20)]
        for place, job in enumerate(jobs):
            _prefer(transport, nodes[place % 3])
            transport.send([job])
        assert transport.counts() == {"default": 20}
        found = _all_of(transport, 20)
        assert {parcel.message.job_id for parcel in found} == {job.job_id for job in jobs}
        transport.drop(found)
        assert transport.counts() == {}

    def test_waiting_receive_gets_job_sent_to_another_node(
        self, nodes: list[PrivateDisque], transport: DisqueTransport
    ) -> None:
        _prefer(transport, nodes[0])
        job = message()
        transport.send([job])
        _prefer(transport, nodes[1])
        (parcel,) = transport.receive(["default"], 5, wait_seconds=120)
        assert parcel.message == job

    def test_dead_node_loses_no_job(
        self, nodes: list[PrivateDisque], transport: DisqueTransport
    ) -> None:
        jobs = [message() for _ in range(10)]
        _prefer(transport, nodes[0])
        transport.send(jobs[:5])
        nodes[0].kill()
        transport.send(jobs[5:])
        for node in nodes[1:]:
            _advance(node, 61)
        found = _all_of(transport, 10)
        assert {parcel.message.job_id for parcel in found} == {job.job_id for job in jobs}
        assert any("does not answer" in sentence for sentence in transport.weaknesses())

    def test_dropped_jobs_are_not_delivered_by_another_node(
        self, nodes: list[PrivateDisque], transport: DisqueTransport
    ) -> None:
        transport.send([message() for _ in range(5)])
        transport.drop(_all_of(transport, 5))
        for node in nodes:
            _advance(node, 61)
        assert transport.receive(["default"], 5, wait_seconds=0.5) == []

    def test_too_few_nodes_for_the_copies_raises_with_that_cause(
        self, nodes: list[PrivateDisque]
    ) -> None:
        """A node refuses a job only some time after the time for its copies is over."""
        for node in nodes[1:]:
            node.kill()
        alone = transport_at(url_of(nodes[:1], "?replicate=3"), database_seconds=3)
        with (
            closing(alone),
            pytest.raises(BrokerUnavailable, match=r"NOREPL .* smaller \?replicate="),
        ):
            alone.send([message() for _ in range(20)])
        assert alone._nodes._away_until == {}, "a healthy node counts as unreachable"

    def test_consumer_switches_to_the_node_with_the_jobs(
        self, nodes: list[PrivateDisque], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disque_nodes, "ENOUGH_JOBS", 10)
        with closing(transport_at(nodes[2].url)) as producer:
            consumer = DisqueTransport(
                replace(producer.settings, broker=url_of(nodes[:1], "?replicate=1"))
            )
            producer.send([message() for _ in range(20)])
            left = 20
            while left:
                found = consumer.receive(["default"], 5, wait_seconds=120)
                consumer.drop(found)
                left -= len(found)
            assert consumer._nodes._current.port == nodes[2].port
            consumer.close()


class TestSilentNodes:
    """None of the nodes answers."""

    class Clock:
        """Passes the whole deadline of each node that is asked."""

        def __init__(self) -> None:
            self.now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

        def time(self) -> float:
            return time.time()

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = self.Clock()

        def read_answers(nodes: Any, node: Any, _: Any, wait_seconds: float, __: Any) -> None:
            clock.now += nodes.seconds + wait_seconds
            raise RedisTimeoutError(f"{node} does not answer")

        monkeypatch.setattr(disque_nodes, "time", clock)
        monkeypatch.setattr(disque_nodes.Nodes, "_read_answers", read_answers)
        return clock

    @pytest.mark.parametrize(
        "call",
        [
            lambda transport: transport.send([message()]),
            lambda transport: transport.receive(["default"], 10),
            lambda transport: transport.receive(["default"], 10, wait_seconds=2.0),
            lambda transport: transport.drop([Parcel(message(), b"D-0")]),
            lambda transport: transport.ping(),
        ],
        ids=["send", "receive", "wait", "drop", "ping"],
    )
    def test_call_takes_no_longer_for_nodes_that_the_url_does_not_name(
        self, clock: Clock, call: Callable[[DisqueTransport], object]
    ) -> None:
        with closing(transport_at("disque://host:1", database_seconds=1.0)) as transport:
            learnt = {f"{port:08}": DisqueNode("host", port) for port in range(2, 6)}
            transport._nodes._origins.update(learnt)
            with pytest.raises(BrokerUnavailable, match="does not answer"):
                call(transport)
        assert clock.now <= 3.0

    @pytest.mark.usefixtures("clock")
    @pytest.mark.parametrize(
        "call",
        [
            lambda transport: transport.receive((), 10),
            lambda transport: transport.counts(),
            lambda transport: transport.purge("default"),
        ],
        ids=["receive", "counts", "purge"],
    )
    def test_call_for_unknown_queues_raises(
        self, call: Callable[[DisqueTransport], object]
    ) -> None:
        """An empty answer would end ``stoker run --drain``."""
        with (
            closing(transport_at("disque://host:1,host:2")) as transport,
            pytest.raises(BrokerUnavailable, match="does not answer"),
        ):
            call(transport)

    def test_each_named_node_is_asked(self, clock: Clock) -> None:
        url = "disque://host:1,host:2,host:3,host:4"
        with closing(transport_at(url, database_seconds=10.0)) as transport:
            with pytest.raises(BrokerUnavailable, match="does not answer"):
                transport.ping()
            assert len(transport._nodes._away_until) == 4
        assert clock.now == 10.0

    @pytest.mark.parametrize("wait_seconds", [0.0, 2.0])
    def test_another_node_is_asked_if_the_only_named_one_is_silent(
        self, clock: Clock, wait_seconds: float
    ) -> None:
        """``BROKER`` names one node, and the process has learnt of the others."""
        with closing(transport_at("disque://host:1", database_seconds=10.0)) as transport:
            learnt = {f"{port:08}": DisqueNode("host", port) for port in range(2, 6)}
            transport._nodes._origins.update(learnt)
            with pytest.raises(BrokerUnavailable, match="does not answer"):
                transport.receive(["default"], 10, wait_seconds=wait_seconds)
            assert len(transport._nodes._away_until) == 2
        assert clock.now == 10.0 + 2 * wait_seconds

    def test_deadline_of_a_connection_is_that_of_its_call(self) -> None:
        nodes = Nodes(Settings(broker="disque://host:1", database_seconds=10.0))
        with closing(nodes):
            deadlines = [nodes._pool(DisqueNode("host", 1), 2.0).connection_kwargs]
            nodes._origins["1"] = DisqueNode("host", 2)
            deadlines.append(nodes._pool(DisqueNode("host", 1), 2.0).connection_kwargs)
        assert [one["socket_timeout"] for one in deadlines] == [12.0, 7.0]


@pytest.mark.parametrize(
    ("cluster", "count"), [("shop:low", 1), ("shop:low:2", 1), ("shop-low", 0), ("low:shop", 0)]
)
def test_name_of_cluster_whose_jobs_another_would_take_is_reported(
    nodes: list[PrivateDisque], cluster: str, count: int
) -> None:
    with closing(DisqueTransport(Settings(broker=url_of(nodes), cluster=cluster))) as transport:
        found = transport.weaknesses()
    assert sum("takes the jobs of" in sentence for sentence in found) == count


def test_one_silent_node_does_not_hide_the_jobs_of_others(
    nodes: list[PrivateDisque], transport: DisqueTransport
) -> None:
    nodes[0].kill()
    _prefer(transport, nodes[1])
    transport.send([message()])
    assert transport.counts() == {"default": 1}
    (parcel,) = transport.receive((), 10)
    transport.release([parcel])
    assert transport.purge("default") == 1


class TestOneNode:
    @pytest.fixture
    def node(self) -> Iterator[PrivateDisque]:
        with PrivateDisque() as made:
            yield made

    @pytest.fixture
    def proxy(self, node: PrivateDisque) -> Iterator[Proxy]:
        with Proxy("127.0.0.1", node.port) as made:
            yield made

    @pytest.fixture
    def far(self, proxy: Proxy) -> Iterator[DisqueTransport]:
        with closing(transport_at(f"disque://127.0.0.1:{proxy.port}", lease_seconds=30)) as made:
            made.ping()
            yield made

    @pytest.mark.parametrize("command", [b"ADDJOB", b"GETJOB", b"ACKJOB"])
    def test_lost_answer_leads_to_redelivery_and_no_lost_job(
        self, node: PrivateDisque, far: DisqueTransport, proxy: Proxy, command: bytes
    ) -> None:
        job = message()
        proxy.lose_answer_to(command)

        def send_and_drop() -> None:
            far.send([job])
            far.drop(far.receive(["default"], 1))

        with pytest.raises(BrokerUnavailable, match="could not process the request"):
            send_and_drop()
        assert proxy.lost.is_set()
        far.send([job])
        _advance(node, 31)
        found = _all_of(far, 1 if command == b"ACKJOB" else 2)
        assert {parcel.message.job_id for parcel in found} == {job.job_id}

    def test_received_job_stays_hidden_until_it_is_released(
        self, node: PrivateDisque, far: DisqueTransport
    ) -> None:
        far.send([message()])
        (parcel,) = far.receive(["default"], 1)
        for _ in range(3):
            _advance(node, 20)
            assert far.extend([parcel]) == [parcel]
        assert far.receive(["default"], 1) == []
        far.release([parcel])
        assert far.receive(["default"], 1) == [parcel]
        far.drop([parcel])
        assert far.extend([parcel]) == []

    def test_failed_request_keeps_the_jobs_that_were_received_before(
        self, far: DisqueTransport, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The received jobs are hidden: dropping them would delay them."""
        monkeypatch.setattr("stoker.brokers.disque.transport.AT_ONCE", 2)
        far.send([message() for _ in range(3)])
        jobs, asked = far._jobs, []

        def jobs_once(*args: Any) -> Any:
            asked.append(args)
            if len(asked) > 1:
                raise BrokerUnavailable("It is away.")
            return jobs(*args)

        monkeypatch.setattr(far, "_jobs", jobs_once)
        assert len(far.receive(["default"], 10)) == 2
        with pytest.raises(BrokerUnavailable):
            far.receive(["default"], 10)

    def test_urgent_jobs_come_first(self, far: DisqueTransport) -> None:
        low, usual, high = (message(priority=priority) for priority in (-5, 0, 5))
        far.send([low, usual, high])
        found = [one.message.priority for one in far.receive((), 10)]
        assert found == [5, 0, -5]
        assert far.capabilities.allow(usual)

    def test_foreign_message_is_received_as_package(self, far: DisqueTransport) -> None:
        name = f"stoker:{far.settings.cluster}:usual:mail"
        far._nodes.ask(["ADDJOB", name, b"whatever", 1000])
        (parcel,) = far.receive((), 10)
        assert (parcel.message.queue, parcel.message.package) == ("mail", b"whatever")


class TestSettings:
    @pytest.mark.parametrize(
        ("url", "what"),
        [
            ("disque://", "host is missing"),
            ("disque://a:b", "a port is not a number"),
            ("disque://a,,b", "host is missing"),
            ("disque://a?copies=2", "only replicate"),
            ("disque://a?replicate=0", "not a number of copies"),
        ],
    )
    def test_invalid_url_raises_with_explanation(self, url: str, what: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"{what}.* Write disque://HOST:PORT"):
            DisqueTransport(Settings(broker=url))

    def test_copies_default_to_two_with_several_nodes(self) -> None:
        for url, copies in (("disque://a", 1), ("disque://a,b", 2), ("disque://a,b,c", 2)):
            assert transport_at(url)._nodes.copies == copies
        assert transport_at("disque://a,b?replicate=3")._nodes.copies == 3

    def test_unreachable_node_raises_without_showing_the_password(self) -> None:
        transport = transport_at("disque://:secret@127.0.0.1:1", database_seconds=0.5)
        with pytest.raises(BrokerUnavailable) as caught:
            transport.ping()
        assert str(caught.value).startswith("disque://127.0.0.1:1 could not process the request: ")
        assert "secret" not in str(caught.value)

    def test_single_node_is_reported_as_weakness(self) -> None:
        with PrivateDisque() as node, closing(transport_at(node.url)) as transport:
            (sentence,) = transport.weaknesses()
        assert "on one node of Disque only" in sentence

    def test_missing_driver_raises_with_install_command(
        self, not_installed: Callable[[str, str], None]
    ) -> None:
        not_installed("redis", "stoker.brokers.disque")
        with pytest.raises(ConfigurationError, match=r"pip install 'django-stoker\[disque\]'"):
            adapter_for(Settings(broker="disque://host"))


def _prefer(transport: DisqueTransport, node: PrivateDisque) -> None:
    transport._nodes._current = disque_nodes.DisqueNode("127.0.0.1", node.port)


def _all_of(transport: DisqueTransport, count: int) -> list[Parcel]:
    found: dict[bytes, Parcel] = {}

    def has_come() -> bool:
        found.update({one.receipt: one for one in transport.receive(["default"], 100)})
        return len(found) >= count

    wait_for(has_come, lambda: f"{len(found)} of {count} came")
    return list(found.values())


def _known_to(node: PrivateDisque) -> int:
    with Redis(port=node.port, protocol=2) as client:
        answer: Any = client.execute_command("HELLO")
    return len(answer) - 2


def _advance(node: PrivateDisque, seconds: float) -> None:
    with Redis(port=node.port, protocol=2) as client:
        client.execute_command("STANDIN", "ADVANCE", seconds)
