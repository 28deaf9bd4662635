"""Frames, messages and descriptors between two processes, even if one does not read."""

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from stoker.cluster.channel import (
    Closed,
    Control,
    Stream,
    is_readable,
    socket_pair,
)

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


def test_default_timeout_of_the_project_does_not_apply() -> None:
    """With a time-out a read would wait, and raise an error that looks like a closed connection."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        stream_ends, control_ends = socket_pair(), socket.socketpair()
        streams, controls = map(Stream, stream_ends), map(Control, control_ends)
        (ours, theirs), (our_control, their_control) = streams, controls
    finally:
        socket.setdefaulttimeout(before)
    assert ours.receive(block=False) == []
    assert our_control.receive(block=False) == []
    theirs.send("jobs")
    their_control.send("stop")
    assert ours.receive(block=True) == ["jobs"]
    assert our_control.receive(block=True) == [(("stop",), None)]
    for end in (*stream_ends, *control_ends):
        end.close()


def test_large_frame_is_sent_in_several_flushes(
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


class ShortOfMemory:
    """A socket of a system that is short of memory: it sends a part, and then fails once."""

    def __init__(self, endpoint: socket.socket, error: int) -> None:
        self._endpoint = endpoint
        self._error = error
        self._calls = 0

    def send(self, part: bytes, flags: int = 0) -> int:
        self._calls += 1
        if self._calls == 2:
            raise OSError(self._error, os.strerror(self._error))
        return self._endpoint.send(part[:10] if self._calls == 1 else part, flags)

    def sendall(self, whole: bytes) -> None:
        self.send(whole)
        self.send(whole)


@pytest.mark.parametrize("error", [errno.ENOBUFS, errno.ENOMEM])
@pytest.mark.parametrize("send", [Stream.send, Stream.queue])
def test_frame_arrives_whole_though_memory_is_short_for_a_moment(
    streams: tuple[Stream, Stream], error: int, send: Callable[[Stream, object], None]
) -> None:
    ours, theirs = streams
    ours.socket = ShortOfMemory(ours.socket, error)  # type: ignore[assignment] # only what it needs
    send(ours, ("reports", [1, 2]))
    while ours.has_outgoing:
        ours.flush()
    assert theirs.receive(block=False) == [("reports", [1, 2])]


def test_other_errors_of_a_socket_raise_closed(streams: tuple[Stream, Stream]) -> None:
    ours, _ = streams
    ours.socket = ShortOfMemory(ours.socket, errno.EPIPE)  # type: ignore[assignment] # as above
    with pytest.raises(Closed):
        ours.send("reports")
    assert not ours.has_outgoing


def test_flush_never_blocks(streams: tuple[Stream, Stream]) -> None:
    ours, _ = streams
    ours.queue(b"x" * 3_000_000)
    ours.flush()
    assert ours.has_outgoing


def test_non_blocking_read_does_not_disturb_a_writer_on_the_same_socket(
    streams: tuple[Stream, Stream],
) -> None:
    """A worker's companion thread sends while the main thread reads."""
    ours, theirs = streams
    writer = threading.Thread(target=ours.send, args=(b"x" * 5_000_000,))
    writer.start()
    received: list[bytes] = []
    while not received:
        assert ours.receive(block=False) == []
        received = theirs.receive(block=False)
    writer.join()
    assert len(received[0]) == 5_000_000


def test_data_sent_before_close_is_received_before_closed_is_raised(
    streams: tuple[Stream, Stream],
) -> None:
    ours, theirs = streams
    ours.send(("reports", [1]))
    ours.close()
    assert theirs.receive(block=True) == [("reports", [1])]
    with pytest.raises(Closed):
        theirs.receive(block=True)
    with pytest.raises(Closed):
        theirs.send("anybody there?")


def test_stop_reading_ends_a_blocked_receive(streams: tuple[Stream, Stream]) -> None:
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


def test_messages_to_a_slow_reader_are_kept_with_their_descriptors(
    controls: tuple[Control, Control],
) -> None:
    """A Linux socket holds hundreds of messages, not thousands; sending more must not block."""
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


def test_receive_with_most_leaves_the_rest_for_the_next_call(
    controls: tuple[Control, Control],
) -> None:
    ours, theirs = controls
    for number in range(3):
        ours.send("message", number)
    assert theirs.receive(block=True, most=1) == [(("message", 0), None)]
    assert theirs.receive(block=False) == [(("message", 1), None), (("message", 2), None)]


def test_message_to_a_closed_end_raises_closed(controls: tuple[Control, Control]) -> None:
    ours, theirs = controls
    theirs.close()
    with pytest.raises(Closed):
        ours.send("hello")
    with pytest.raises(Closed):
        ours.receive(block=True)


def test_unsent_descriptors_are_closed(controls: tuple[Control, Control]) -> None:
    ours, theirs = controls
    reader, writer = os.pipe()
    while not ours._outgoing:
        ours.send("worker", descriptor=writer)
    os.close(writer)
    ours.close()
    theirs.close()
    assert is_readable(120, reader), "the other end is still open"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_is_readable_returns_false_after_its_time(streams: tuple[Stream, Stream]) -> None:
    ours, theirs = streams
    assert not is_readable(0, ours)
    theirs.send("now")
    assert is_readable(120, ours)
