"""Frames, messages and descriptors between two processes, also when one of them does not read."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from stoker.cluster.channel import Closed, Control, Stream, is_readable, socket_pair

pytestmark = pytest.mark.unit


@pytest.fixture
def streams() -> Iterator[tuple[Stream, Stream]]:
    first, second = socket_pair()
    with first, second:
        yield Stream(first), Stream(second)


@pytest.fixture
def controls() -> Iterator[tuple[Control, Control]]:
    first, second = socket.socketpair()
    with first, second:
        yield Control(first), Control(second)


def test_frames_arrive_whole_and_in_order(streams: tuple[Stream, Stream]) -> None:
    ours, theirs = streams
    messages = [
        ("jobs", [(1, b"x" * 10, "text", 2.5, None)]),
        ("recorded", [1, 2]),
        ("leaving", []),
    ]
    for message in messages:
        ours.queue(message)
    ours.flush()
    assert theirs.receive(block=True) == messages
    assert theirs.receive(block=False) == []


def test_a_frame_larger_than_the_socket_takes_several_turns(
    streams: tuple[Stream, Stream],
) -> None:
    ours, theirs = streams
    ours.queue(("jobs", b"x" * 3_000_000))
    received = []
    while not received:
        ours.flush()
        received = theirs.receive(block=False)
    assert len(received[0][1]) == 3_000_000
    assert not ours.has_outgoing


def test_flush_never_blocks(streams: tuple[Stream, Stream]) -> None:
    ours, _ = streams
    ours.queue(b"x" * 3_000_000)
    ours.flush()
    assert ours.has_outgoing


def test_a_reader_that_must_not_wait_disturbs_no_writer_on_the_same_socket(
    streams: tuple[Stream, Stream],
) -> None:
    """The worker's companion sends what the main thread may be reading beside."""
    ours, theirs = streams
    writer = threading.Thread(target=ours.send, args=(b"x" * 5_000_000,))
    writer.start()
    received: list[bytes] = []
    while not received:
        assert ours.receive(block=False) == []
        received = theirs.receive(block=False)
    writer.join()
    assert len(received[0]) == 5_000_000


def test_what_was_sent_before_the_end_is_read_before_it(streams: tuple[Stream, Stream]) -> None:
    ours, theirs = streams
    ours.send(("reports", [1]))
    ours.close()
    assert theirs.receive(block=True) == [("reports", [1])]
    with pytest.raises(Closed):
        theirs.receive(block=True)
    with pytest.raises(Closed):
        theirs.send("anybody there?")


def test_who_is_called_off_meets_the_end(streams: tuple[Stream, Stream]) -> None:
    ours, _ = streams
    found: list[str] = []

    def read() -> None:
        try:
            ours.receive(block=True)
        except Closed:
            found.append("the end")

    reader = threading.Thread(target=read)
    reader.start()
    ours.stop_reading()
    reader.join(120)
    assert found == ["the end"]


def test_messages_to_one_who_does_not_read_are_kept_with_their_descriptors(
    controls: tuple[Control, Control],
) -> None:
    """Hundreds fit into a socket of Linux, not thousands: none may be lost, none may block."""
    ours, theirs = controls
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "wb"):
        for number in range(2000):
            ours.send("worker", number, descriptor=reader if number % 20 == 0 else None)
    heard: list[int] = []
    descriptors: list[int] = []
    while len(heard) < 2000:
        ours.flush()
        for (_, number), descriptor in theirs.receive(block=False):
            heard.append(number)
            if descriptor is not None:
                assert number % 20 == 0
                assert not os.get_inheritable(descriptor)
                descriptors.append(descriptor)
    assert heard == list(range(2000))
    assert len(descriptors) == 100
    for descriptor in descriptors:
        assert os.read(descriptor, 1) == b""
        os.close(descriptor)


def test_one_message_at_a_time_leaves_the_rest_for_the_next_call(
    controls: tuple[Control, Control],
) -> None:
    ours, theirs = controls
    for number in range(3):
        ours.send("message", number)
    assert theirs.receive(block=True, most=1) == [(("message", 0), None)]
    assert theirs.receive(block=False) == [(("message", 1), None), (("message", 2), None)]


def test_a_message_to_the_dead_says_so(controls: tuple[Control, Control]) -> None:
    ours, theirs = controls
    theirs.close()
    with pytest.raises(Closed):
        ours.send("hello")
    with pytest.raises(Closed):
        ours.receive(block=True)


def test_descriptors_that_were_never_sent_are_closed(controls: tuple[Control, Control]) -> None:
    ours, theirs = controls
    reader, writer = os.pipe()
    while not ours._outgoing:
        ours.send("worker", descriptor=writer)
    os.close(writer)
    ours.close()
    theirs.close()
    assert is_readable(120, reader), "somebody still holds the other end"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_nothing_to_read_is_said_after_the_time(streams: tuple[Stream, Stream]) -> None:
    ours, theirs = streams
    assert not is_readable(0, ours)
    theirs.send("now")
    assert is_readable(120, ours)
