"""IronMQ only: busy answers, reservations that end, lost answers, invalid URLs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from stoker.brokers import ironmq
from stoker.brokers.adapters import adapter_for
from stoker.brokers.ironmq import KEPT_SECONDS, IronmqRefusal, IronmqTransport
from stoker.brokers.transport import Line
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError

from tests.cluster.clusters import wait_for
from tests.conformance.stands import message
from tests.servers.ironmq import PrivateIronmq, url_at
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.sqlite, pytest.mark.ironmq]


def transport_at(url: str, **options: Any) -> IronmqTransport:
    cluster = f"test-{uuid.uuid4().hex}"
    return IronmqTransport(Settings(broker=url, cluster=cluster, **options))


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateIronmq]:
    with PrivateIronmq() as made:
        yield made


@pytest.fixture
def proxy(server: PrivateIronmq) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as made:
        yield made


@pytest.fixture
def transport(proxy: Proxy) -> Iterator[IronmqTransport]:
    with closing(transport_at(url_at(proxy.port), database_seconds=60)) as made:
        made.ping()
        yield made


def test_name_of_cluster_whose_jobs_another_would_take_is_reported(server: PrivateIronmq) -> None:
    name = f"test-{uuid.uuid4().hex}"
    settings = Settings(broker=url_at(server.port), cluster=f"{name}-high-2")
    with closing(IronmqTransport(settings)) as transport:
        (sentence,) = transport.weaknesses()
    assert repr(name) in sentence
    assert "without '-high'" in sentence


class TestBusy:
    def test_request_to_a_busy_server_is_repeated(
        self, server: PrivateIronmq, transport: IronmqTransport
    ) -> None:
        _stand_in(server, "busy", times=3)
        job = message()
        transport.send([job])
        _stand_in(server, "busy", times=2)
        (parcel,) = transport.receive((), 5)
        assert parcel.message == job

    def test_server_that_stays_busy_raises_broker_unavailable(self, server: PrivateIronmq) -> None:
        _stand_in(server, "busy", times=1_000)
        far = transport_at(url_at(server.port), database_seconds=0.3)

        def is_refused_as_busy() -> bool:
            with pytest.raises(BrokerUnavailable) as caught:
                far.send([message()])
            return "could not process the request: 503 Service Un" in str(caught.value)

        with closing(far):
            wait_for(is_refused_as_busy)  # an overloaded server may not answer at all
        _stand_in(server, "busy", times=0)

    @pytest.mark.parametrize("request_line", [b"/messages HTTP", b"reservations", b"DELETE"])
    def test_lost_answer_leads_to_redelivery_and_no_lost_job(
        self,
        server: PrivateIronmq,
        proxy: Proxy,
        transport: IronmqTransport,
        request_line: bytes,
    ) -> None:
        """A repeated request may add a second message, or reserve one until its timeout."""
        job = message()
        proxy.lose_answer_to(request_line)
        transport.send([job])
        found = transport.receive((), 5)
        transport.drop(found)
        assert proxy.lost.is_set()
        _stand_in(server, "advance", seconds=61)
        found += transport.receive((), 5)
        assert {parcel.message.job_id for parcel in found} == {job.job_id}

    def test_cut_connections_are_reopened(self, proxy: Proxy, transport: IronmqTransport) -> None:
        proxy.cut()
        transport.send([message()])
        assert len(transport.receive((), 5)) == 1


class TestReservations:
    def test_expired_reservation_changes_nothing(
        self, server: PrivateIronmq, transport: IronmqTransport
    ) -> None:
        transport.send([message(), message()])
        late = transport.receive((), 5)
        _stand_in(server, "advance", seconds=61)
        now = transport.receive((), 5)
        assert transport.extend(late) == []
        transport.release(late)
        transport.drop(late)
        assert transport.receive((), 5) == []
        assert len(transport.extend(now)) == 2

    def test_touch_makes_a_new_reservation(
        self, server: PrivateIronmq, transport: IronmqTransport
    ) -> None:
        transport.send([message()])
        before = transport.receive((), 5)
        _stand_in(server, "advance", seconds=50)
        now = transport.extend(before)
        _stand_in(server, "advance", seconds=50)
        transport.drop(before)
        assert transport.counts() == {"default": 1}
        transport.drop(now)
        assert not any(transport.counts().values())

    def test_expired_reservation_does_not_block_others(
        self, server: PrivateIronmq, transport: IronmqTransport
    ) -> None:
        transport.send([message()])
        late = transport.receive((), 5)
        _stand_in(server, "advance", seconds=61)
        again = transport.receive((), 5)
        transport.send([message()])
        transport.drop([*late, *transport.receive((), 5)])
        assert transport.counts() == {"default": 1}
        transport.release(again)
        assert len(transport.receive((), 5)) == 1

    def test_more_messages_than_fit_one_request_are_sent_and_received(
        self, transport: IronmqTransport
    ) -> None:
        jobs = [message(package=b"x" * 40_000, priority=place % 3 - 1) for place in range(130)]
        transport.send(jobs)
        found = transport.receive((), 200)
        assert {one.message.job_id for one in found} == {job.job_id for job in jobs}
        assert found[0].message.priority == 1
        assert found[-1].message.priority == -1
        transport.drop(found)
        assert not any(transport.counts().values())

    def test_failed_request_of_one_queue_keeps_messages_of_others(
        self, transport: IronmqTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The received messages are reserved: dropping them would delay their jobs."""
        transport.send([message(queue="a"), message(queue="b")])
        reserve = transport._reserve

        def reserve_of_a(line: Line, *args: Any) -> Any:
            if line.queue == "b":
                raise BrokerUnavailable("It is away.")
            return reserve(line, *args)

        monkeypatch.setattr(transport, "_reserve", reserve_of_a)
        monkeypatch.setattr(transport, "_turn", 1)
        (parcel,) = transport.receive(["a", "b"], 20)
        assert parcel.message.queue == "a"
        with pytest.raises(BrokerUnavailable):
            transport.receive(["a", "b"], 20)

    def test_refused_purge_raises(self, server: PrivateIronmq, transport: IronmqTransport) -> None:
        transport.send([message()])
        ask = transport._service.ask

        def refuse(verb: str, *args: Any, **options: Any) -> Any:
            if verb == "DELETE":
                error = IronmqRefusal("500")
                error.status = 500
                raise error
            return ask(verb, *args, **options)

        transport._service.ask = refuse  # type: ignore[method-assign] # as a broken server does
        with pytest.raises(BrokerUnavailable):
            transport.purge("default")
        assert transport.counts() == {"default": 1}

    @pytest.mark.parametrize("queue", ["mail", "a/b", "ä ~ %7E-", "x-usual-y"])
    def test_any_queue_name_is_encoded(self, transport: IronmqTransport, queue: str) -> None:
        transport.send([message(queue=queue)])
        assert transport.counts() == {queue: 1}
        (parcel,) = transport.receive([queue], 5)
        assert parcel.message.queue == queue

    def test_foreign_message_is_received_as_package(self, transport: IronmqTransport) -> None:
        transport.send([message()])
        path = f"queues/stoker-{transport.settings.cluster}-usual-default/messages"
        transport._service.ask("POST", path, {"messages": [{"body": "what is this?"}]})
        packages = {parcel.message.package for parcel in transport.receive((), 5)}
        assert packages == {b"package", b"what is this?"}


class TestDeadline:
    def test_all_requests_of_a_receive_have_one_deadline(
        self, server: PrivateIronmq, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each answer comes in time, but all together would take longer than a heartbeat may."""
        clock = [0.0]
        monkeypatch.setattr(ironmq, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time))
        far = transport_at(url_at(server.port), database_seconds=60)
        answer, asked = far._service._answer, []

        def slowly(verb: str, path: str, what: Any, timeout: httpx.Timeout) -> dict[str, Any]:
            asked.append(timeout.connect)
            clock[0] += 25
            return answer(verb, path, what, httpx.Timeout(60))

        with closing(far):
            far.send([message(queue="a"), message(queue="b")])
            monkeypatch.setattr(far._service, "_answer", slowly)
            far.receive((), 20)
        assert asked[:3] == [60, 35, 10]
        assert len(asked) == 3


class TestSettings:
    @pytest.mark.parametrize(
        ("url", "what"),
        [
            ("ironmq://host", "something is missing"),
            ("ironmq://project@host", "something is missing"),
            ("ironmq://p:t@host:port", "port"),
            ("ironmq://p:t@host?ssl=no", "only tls"),
            ("ironmq://p:t@host?tls=no", "not true or false"),
        ],
    )
    def test_invalid_url_raises_with_explanation(self, url: str, what: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"(?i){what}.* Write ironmq://PROJECT"):
            IronmqTransport(Settings(broker=url))

    def test_wrong_token_raises_without_showing_it(self, server: PrivateIronmq) -> None:
        url = url_at(server.port).replace(":token@", ":secret@")
        far, said = transport_at(url), r"401 .* Check the token"
        with closing(far), pytest.raises(BrokerUnavailable, match=said) as caught:
            far.ping()
        assert "secret" not in str(caught.value)

    def test_short_message_expiration_is_reported_as_weakness(
        self, server: PrivateIronmq, transport: IronmqTransport
    ) -> None:
        transport.send([message()])
        assert transport.weaknesses() == []
        path = f"queues/stoker-{transport.settings.cluster}-usual-mail"
        transport._service.ask("PUT", path, {"queue": {"message_expiration": 604_800}})
        (sentence,) = transport.weaknesses()
        assert f"7 days. Set its message_expiration to {KEPT_SECONDS}." in sentence

    def test_missing_driver_raises_with_install_command(
        self, not_installed: Callable[[str, str], None]
    ) -> None:
        not_installed("httpx", "stoker.brokers.ironmq")
        with pytest.raises(ConfigurationError, match=r"pip install 'django-stoker\[ironmq\]'"):
            adapter_for(Settings(broker="ironmq://p:t@host"))


def _stand_in(server: PrivateIronmq, verb: str, **what: Any) -> None:
    httpx.post(f"http://127.0.0.1:{server.port}/standin/{verb}", json=what).raise_for_status()
