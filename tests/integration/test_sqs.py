"""SQS only: FIFO queues, delays, limits, redrive policies, invalid URLs."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError
from django.test import override_settings

from stoker import queues
from stoker.brokers.adapters import adapter_for
from stoker.brokers.contract import Return
from stoker.brokers.sqs.queues import QueueRefused, Queues, address_of
from stoker.brokers.sqs.transport import Polls, SqsTransport
from stoker.brokers.transport import Parcel
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError
from stoker.models import Relayed

from tests.app.tasks import add
from tests.cluster.clusters import wait_for
from tests.conformance.server_stands import SqsStand
from tests.conformance.stands import message
from tests.servers.proxy import Proxy
from tests.servers.sqs import PrivateSqs

pytestmark = [pytest.mark.postgres, pytest.mark.sqs, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def stand() -> Iterator[SqsStand]:
    made = SqsStand()
    yield made
    made.clear()


@pytest.fixture
def sqs(stand: SqsStand) -> Any:
    """Give a client as an operator of the queues would use it."""
    return boto3.client(
        "sqs", region_name="us-east-1", endpoint_url=stand.transport.address.endpoint
    )


def queue_url(stand: SqsStand, sqs: Any, queue: str = "default") -> str:
    name = stand.transport.address.name_of(queue)
    return str(sqs.get_queue_url(QueueName=name)["QueueUrl"])


def beside(stand: SqsStand, **changes: str) -> SqsTransport:
    """Return a transport to the same queues, with other options in its URL."""
    more = "".join(f"&{name}={value}" for name, value in changes.items())
    return SqsTransport(replace(stand.settings, broker=stand.settings.broker + more))


class TestFifo:
    def test_fifo_jobs_run_in_order_one_at_a_time(self, stand: SqsStand) -> None:
        put = stand.put(3, queue="orders.fifo")
        other = stand.put(queue="other.fifo")
        for job_id in put:
            running = stand.claim(10, "orders.fifo")
            assert [one.job_id for one in running] == [job_id]
            assert stand.claim(10, "orders.fifo") == []
            stand.broker.settle([one.lease for one in running])
        assert [one.job_id for one in stand.claim(10, "other.fifo")] == other

    def test_retry_blocks_later_jobs(self, stand: SqsStand) -> None:
        first, second = stand.put(2, queue="orders.fifo")
        (running,) = stand.claim(10, "orders.fifo")
        stand.broker.settle(again=[Return(running.lease, 10.0, attempts=1)])
        assert stand.claim(10, "orders.fifo") == []
        stand.advance(11)
        (again,) = stand.claim(10, "orders.fifo")
        assert (again.job_id, again.attempt) == (first, 2)
        stand.broker.settle([again.lease])
        assert [one.job_id for one in stand.claim(10, "orders.fifo")] == [second]

    def test_groups_option_makes_a_group_per_task_or_job(self, stand: SqsStand) -> None:
        by_task, by_job = beside(stand, groups="task"), beside(stand, groups="job")
        by_task.send([message(queue="a.fifo", task=task) for task in ("x", "x", "y")])
        by_job.send([message(queue="b.fifo") for _ in range(3)])
        by_task.send([message(queue="a.fifo", task="é" * 200)])
        groups = [one.message.needs for one in by_task.receive(["a.fifo"], 10)]
        assert groups[0] == groups[1] != groups[2]
        assert len(set(groups)) == 3
        assert [one.message.needs for one in by_job.receive(["b.fifo"], 10)] == [()] * 3

    def test_job_sent_twice_is_stored_once(self, stand: SqsStand) -> None:
        job = message(queue="orders.fifo")
        for _ in range(2):
            stand.transport.send([job])
        assert stand.transport.counts() == {"orders.fifo": 1}

    def test_requests_to_a_fifo_queue_are_sent_in_order_up_to_the_first_failure(
        self, stand: SqsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send = stand.transport._queues.send
        sent: Counter[str] = Counter()

        def send_to(name: str, entries: Any) -> None:
            queue = stand.transport.address.queue_of(name)
            sent[queue] += 1
            if queue == "orders.fifo" and sent[queue] == 3:
                _fails()
            send(name, entries)

        monkeypatch.setattr(stand.transport._queues, "send", send_to)
        orders = [message(queue="orders.fifo") for _ in range(45)]
        others = [message(queue=queue) for queue in ("other.fifo", "mail") for _ in range(15)]
        with pytest.raises(BrokerUnavailable, match="It has gone away"):
            stand.transport.send([*orders, *others])
        assert sent == {"orders.fifo": 3, "other.fifo": 2, "mail": 2}
        received: list[Any] = []
        while found := stand.transport.receive(["orders.fifo"], 10):
            received += [parcel.message.job_id for parcel in found]
            stand.transport.drop(found)
        assert received == [job.job_id for job in orders[:20]]


class TestLimits:
    """Jobs that SQS cannot hold wait in the store."""

    def test_late_large_urgent_and_delayed_fifo_jobs_wait_in_the_store(
        self, stand: SqsStand
    ) -> None:
        now, joins = time.time(), stand.broker.joins
        assert not joins(message(run_after=now + 800, package=b"x" * 190_000))
        assert joins(message(run_after=now + 1_000))
        assert joins(message(package=b"x" * 200_000))
        assert joins(message(priority=1))
        assert joins(message(queue="orders.fifo", run_after=now + 1))
        assert not joins(message(queue="orders.fifo"))

    def test_max_message_bytes_is_an_option(self, stand: SqsStand) -> None:
        large = beside(stand, max_message_bytes=str(1 << 20))
        package = b"x" * 700_000
        assert large.takes(message(package=package))
        large.send([message(package=package) for _ in range(3)])
        (parcel, *_) = large.receive(["default"], 1)
        assert parcel.message.package == package

    def test_short_delay_is_kept_by_sqs(self, stand: SqsStand, sqs: Any) -> None:
        stand.put(run_after=time.time() + 600)
        told = sqs.get_queue_attributes(QueueUrl=queue_url(stand, sqs), AttributeNames=["All"])
        assert told["Attributes"]["ApproximateNumberOfMessagesDelayed"] == "1"
        assert stand.claim() == []


class TestDeletion:
    def test_undeleted_message_is_recognised_when_redelivered(self, stand: SqsStand) -> None:
        stand.put(3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stand.transport._queues, "delete", _fails)
            claimed = stand.claim()
        stand.broker.settle([one.lease for one in claimed])
        noted_at = Relayed.objects.earliest("relayed_at").relayed_at
        stand.advance(61)
        assert stand.claim() == []
        assert stand.transport.counts() == {"default": 0}
        assert Relayed.objects.earliest("relayed_at").relayed_at > noted_at

    def test_lost_answer_makes_no_second_job(self, stand: SqsStand) -> None:
        parts = urlsplit(stand.transport.address.endpoint)
        job = message()
        stand.transport.ping()
        with Proxy(parts.hostname or "", parts.port or 0) as proxy:
            url = stand.settings.broker.replace(str(parts.port), str(proxy.port))
            far = SqsTransport(replace(stand.settings, broker=url))
            far.ping()
            proxy.lose_answer_to(b"SendMessageBatch")
            far.send([job])
            assert proxy.lost.is_set(), "nothing was lost"
            far.close()
        assert stand.transport.counts() == {"default": 2}
        assert [one.job_id for one in stand.claim()] == [job.job_id]


class TestQueues:
    def test_created_queues_keep_messages_for_14_days(self, stand: SqsStand, sqs: Any) -> None:
        stand.put()
        url = queue_url(stand, sqs)
        told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert told["MessageRetentionPeriod"] == str(14 * 86_400)
        assert stand.transport.weaknesses() == []

    def test_attributes_that_may_lose_jobs_are_reported(self, stand: SqsStand, sqs: Any) -> None:
        stand.put()
        url = queue_url(stand, sqs)
        dead = sqs.create_queue(QueueName=f"{stand.transport.address.prefix}dead")["QueueUrl"]
        (arn,) = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])[
            "Attributes"
        ].values()
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
        changes = {
            "MessageRetentionPeriod": "86400",
            "RedrivePolicy": policy,
            "MaximumMessageSize": "65536",
        }
        sqs.set_queue_attributes(QueueUrl=url, Attributes=changes)
        found = stand.transport.weaknesses()
        assert len(found) == 3
        for word in ("MessageRetentionPeriod", "maxReceiveCount", "max_message_bytes=65536"):
            assert any(word in sentence for sentence in found)

    def test_attempts_are_counted_in_the_store_only(self, stand: SqsStand, sqs: Any) -> None:
        """However many attempts a job has, the queue's redrive policy counts one."""
        stand.put()
        for attempt in range(1, 6):
            delivery = stand.claim_one()
            assert delivery.attempt == attempt
            stand.broker.settle(again=[Return(delivery.lease, attempts=attempt)])
        assert stand.transport.counts() == {"default": 0}

    def test_missing_queue_raises_with_advice(self, stand: SqsStand) -> None:
        with pytest.raises(BrokerUnavailable, match=r"-nobody-made-it: .* remove create=false"):
            beside(stand, create="false").send([message(queue="nobody-made-it")])

    def test_failed_receive_of_one_queue_keeps_messages_of_others(
        self, stand: SqsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The received messages are hidden from others: dropping them would delay their jobs."""
        stand.put(25, queue="a")
        stand.put(queue="b")
        receive = stand.transport._queues.receive

        def receive_of_a(name: str, *args: Any, **options: Any) -> Any:
            return receive(name, *args, **options) if name.endswith("-a") else _fails()

        monkeypatch.setattr(stand.transport._queues, "receive", receive_of_a)
        parcels = stand.transport.receive(["a", "b"], 100)
        assert [parcel.message.queue for parcel in parcels] == ["a"] * 25
        with pytest.raises(BrokerUnavailable):
            stand.transport.receive(["a", "b"], 100)

    def test_refused_queue_is_reported_and_left_out_of_counts(
        self, stand: SqsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand.put(queue="a")
        stand.put(queue="b")
        names = set(stand.transport._queues.names())
        client, _ = stand.transport._queues._asked().__enter__()
        describe = client.get_queue_attributes
        refused = {name for name in names if name.endswith("-b")}

        def get_queue_attributes(QueueUrl: str, **options: Any) -> Any:  # noqa: N803
            if QueueUrl.rpartition("/")[2] in refused:
                code = {"Code": "AccessDenied", "Message": "You may not look at it."}
                raise ClientError({"Error": code}, "GetQueueAttributes")
            return describe(QueueUrl=QueueUrl, **options)

        monkeypatch.setattr(client, "get_queue_attributes", get_queue_attributes)
        assert stand.transport.counts() == {"a": 1}
        (sentence,) = stand.transport.weaknesses()
        assert "You may not look at it." in sentence
        assert all(name in sentence for name in refused)
        refused |= names
        with pytest.raises(BrokerUnavailable, match="You may not look at it"):
            stand.transport.counts()

    def test_refused_queue_is_reported_once_and_delays_no_other(
        self,
        stand: SqsStand,
        monkeypatch: pytest.MonkeyPatch,
        events: list[tuple[str, dict[str, Any]]],
    ) -> None:
        receive, refused = Queues.receive, {"-b"}

        def receive_unless_refused(self: Queues, name: str, *args: Any, **options: Any) -> Any:
            if name[-2:] in refused:
                raise QueueRefused(f"SQS refuses {name}.")
            return receive(self, name, *args, **options)

        monkeypatch.setattr(Queues, "receive", receive_unless_refused)
        arrivals: Any = stand.broker.arrivals
        with closing(arrivals.open_wake()) as poller:
            for _ in range(3):
                (job_id,) = stand.put(queue="a")
                wait_for(lambda: any(one.job_id == job_id for one in stand.claim(10, "a", "b")))  # noqa: B023 - called at once
                assert stand.claim(10, "a", "b") == []
                assert poller.is_idle
                assert not arrivals.is_server_empty, "run --drain would leave the jobs of b"
        assert [name for name, _ in events] == ["queue_refused"]
        assert events[0][1]["error"].endswith("-b.")
        refused.clear()
        assert stand.claim(10, "a", "b") == []
        assert not stand.transport.refused
        refused.update(["-a", "-b"])
        with pytest.raises(QueueRefused):
            stand.transport.receive(["a", "b"], 10)

    def test_queue_with_a_name_that_sqs_does_not_allow_is_shown_and_cleared(
        self, stand: SqsStand
    ) -> None:
        queue = "mail.high"
        backend = {
            "BACKEND": "stoker.backend.StokerBackend",
            "QUEUES": [],
            "OPTIONS": {"BROKER": stand.settings.broker, "CLUSTER": stand.settings.cluster},
        }
        with override_settings(TASKS={"default": backend}):
            add.using(queue_name=queue).enqueue(1, 2)
            assert queues.clear(queue, dry_run=True) == queues.Cleared(1, 0)
            assert queues.clear(queue) == queues.Cleared(1, 1, not_kept=1)
            add.using(queue_name=queue).enqueue(1, 2)
        with override_settings(TASKS={"default": backend | {"QUEUES": [queue]}}):
            assert {one.name: one.ready for one in queues.list()} == {queue: 1}

    def test_clear_counts_its_jobs_and_leaves_later_ones(self, stand: SqsStand) -> None:
        """PurgeQueue deletes whatever comes in the next minute."""
        stand.put(25)
        (late,) = stand.put(run_after=stand.now() + 60)
        assert stand.transport.purge("default") == 25
        assert stand.transport.purge("default") == 0
        (job_id,) = stand.put()
        stand.advance(61)
        assert {one.job_id for one in stand.claim()} == {job_id, late}

    def test_each_of_many_queues_is_received_from(
        self, stand: SqsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request is sent to ten queues at once. Those may have a backlog."""
        asked: Counter[str] = Counter()

        def receive(name: str, count: int, wait_seconds: float = 0.0) -> list[Parcel]:
            asked[name] += 1
            return [Parcel(message(), None)] * count

        monkeypatch.setattr(stand.transport, "_receive", receive)
        names = [f"queue-{number:02}" for number in range(15)]
        for _ in range(15):
            stand.transport.receive(names, 100)
        assert sorted(asked.values()) == [10] * 15

    def test_receive_waits_for_several_queues_at_once(self, stand: SqsStand) -> None:
        def comes_before_the_others_end() -> bool:
            """A busy machine may take that long itself."""
            stand.put(queue="b")
            began = time.monotonic()
            (parcel,) = stand.transport.receive(["a", "b", "c"], 10, wait_seconds=20)
            assert parcel.message.queue == "b"
            return time.monotonic() - began < 15

        wait_for(comes_before_the_others_end)

    def test_new_queue_is_served_while_polls_of_others_wait(
        self, stand: SqsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.brokers.sqs.transport.NAMES_SECONDS", 0.1)
        stand.put(queue="a")
        stand.transport.drop(stand.transport.receive((), 10))
        receive, sent = stand.transport._queues.receive, []
        is_over = threading.Event()

        def receive_later_from_a(name: str, *args: Any, **options: Any) -> Any:
            if name.endswith("-a") and not sent:
                sent.extend(stand.put(queue="b"))
                is_over.wait()
            return receive(name, *args, **options)

        monkeypatch.setattr(stand.transport._queues, "receive", receive_later_from_a)
        found: list[Parcel] = []
        while not found:
            found = stand.transport.receive((), 10, wait_seconds=600)
        assert [parcel.message.job_id for parcel in found] == sent
        is_over.set()


class TestPolls:
    def test_poll_that_failed_is_made_again(self) -> None:
        parcel = Parcel(message(), None)
        answers: list[Any] = [RuntimeError("unexpected"), [parcel]]

        def receive(*_: Any) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        polls = Polls(receive, lambda _: None, 10)
        parcels, failures = polls.wait(["a"], 600, 600)
        assert parcels == []
        assert list(map(str, failures.values())) == ["unexpected"]
        assert polls.wait(["a"], 600, 600) == ([parcel], {})

    def test_failed_poll_does_not_end_the_wait_for_other_queues(self) -> None:
        parcel = Parcel(message(), None)
        answers: list[list[Parcel]] = [[], [], [parcel]]
        failed: list[threading.Thread] = []
        has_failed = threading.Event()
        released: list[Parcel] = []

        def receive(name: str, *_: Any) -> Any:
            if name == "refused":
                failed.append(threading.current_thread())
                has_failed.set()
                _fails()
            has_failed.wait()
            failed[0].join()
            return answers.pop(0)

        polls = Polls(receive, released.extend, 10)
        parcels, failures = polls.wait(["refused", "a"], 600, 600)
        assert parcels == [parcel]
        assert list(failures) == ["refused"]
        assert len(failed) == 1, "a failed queue is polled once in each wait"
        assert released == []

    def test_wait_without_messages_returns_the_error_of_a_failed_poll(self) -> None:
        def receive(name: str, *_: Any) -> Any:
            if name == "refused":
                _fails()
            is_over.wait()
            return []

        def has_failed() -> bool:
            """A busy machine may start the threads too late."""
            parcels, failures = polls.wait(["refused", "a"], 0.1, 0.1)
            assert parcels == []
            return list(failures) == ["refused"]

        is_over = threading.Event()
        polls = Polls(receive, lambda _: None, 10)
        wait_for(has_failed)
        is_over.set()

    def test_poll_that_could_not_start_is_made_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        parcel = Parcel(message(), None)
        polls = Polls(lambda *_: [parcel], lambda _: None, 10)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_thread)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                polls.wait(["a"], 600, 600)
        assert polls.wait(["a"], 600, 600) == ([parcel], {})


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqs://key:secret@eu-west-1/shop", "credentials"),
        ("sqs://localhost:4566/shop", "endpoint="),
        ("sqs://eu-west-1/shop.com", "is not a prefix"),
        ("sqs://eu-west-1/shop?colour=red", "no option 'colour'"),
        ("sqs://eu-west-1/shop?fifo=yes", "not true or false"),
        ("sqs://eu-west-1/shop?groups=all", "not one of queue, task, job"),
        ("sqs://eu-west-1/shop?endpoint=host", "not a URL"),
        ("sqs://eu-west-1/shop?max_message_bytes=9999999", "not a number from"),
    ],
)
def test_invalid_url_raises_configuration_error(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        adapter_for(Settings(broker=url))


def test_queue_names_are_valid_and_distinct_in_sqs() -> None:
    address = address_of(Settings(broker="sqs://eu-west-1/shop"))
    assert address.name_of("mail") == "shop-mail"
    assert address.name_of("mail.fifo") == "shop-mail.fifo"
    names = {address.name_of(queue) for queue in ("a b", "a-b", "a.b", "é", "x" * 100, "x" * 99)}
    assert len(names) == 6
    assert all(len(name) <= 80 for name in names)
    fifo = address_of(Settings(broker="sqs:///shop?fifo=true"))
    assert fifo.name_of("mail") == "shop-mail.fifo"
    assert fifo.queue_of("shop-mail.fifo") == "mail"


def _no_thread(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


def _fails(*_: Any) -> None:
    raise BrokerUnavailable("It has gone away.")


def test_stand_in_closes_connections_of_lost_clients() -> None:
    with PrivateSqs(idle_seconds=0.2) as server:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as lost:
                assert lost.recv(1) == b""


def test_stand_in_does_not_answer_clients_that_have_hung_up() -> None:
    patience = Config(read_timeout=0.5, retries={"total_max_attempts": 1})
    with PrivateSqs() as server:
        endpoint = {
            "endpoint_url": f"http://127.0.0.1:{server.port}",
            "region_name": "us-east-1",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
        }
        sqs = boto3.client("sqs", **endpoint)
        queue = sqs.create_queue(QueueName="default")["QueueUrl"]
        with pytest.raises(ReadTimeoutError):
            boto3.client("sqs", **endpoint, config=patience).receive_message(
                QueueUrl=queue, WaitTimeSeconds=20
            )
        sqs.send_message(QueueUrl=queue, MessageBody="hello")
        assert sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5).get("Messages")
