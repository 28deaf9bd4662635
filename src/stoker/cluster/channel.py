"""Communication between the cluster's processes, over one socket pair for each pair of processes.

The processes share no locks or queues that a killed process could hold. ``Stream`` carries frames
of plain values (marshal: same interpreter, same host, no code). ``Control`` connects the sentinel
with a child; its messages can carry a file descriptor.

The sockets block, even if the project calls ``socket.setdefaulttimeout()``; each non-blocking call
requests that itself. So one thread can read while another writes, without affecting each other.
"""

from __future__ import annotations

import array
import errno
import marshal
import os
import select
import selectors
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from typing import Any

HEADER = struct.Struct("!I")
RECEIVE_BYTES = 1 << 18
MESSAGE_BYTES = 1 << 14
DESCRIPTORS_AT_ONCE = 16
TRY_LATER = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS}
"""Errors that mean that the buffer of the other side is full, or that the kernel is short of
resources."""
SHORTAGE_SECONDS = 0.01
"""How long a blocking ``send`` waits if the kernel is short of resources."""


class Closed(Exception):
    """The other side has closed the connection."""


class Stream:
    """Frames over one end of a socket pair, with optional blocking."""

    def __init__(self, endpoint: socket.socket) -> None:
        endpoint.settimeout(None)
        self.socket = endpoint
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    @property
    def outgoing_bytes(self) -> int:
        return len(self._outgoing)

    def send(self, message: Any) -> None:
        """Send a frame, blocking until it is written. Raises Closed."""
        self.queue(message)
        try:
            while not self._write(0):
                time.sleep(SHORTAGE_SECONDS)
        finally:
            self._outgoing.clear()

    def queue(self, message: Any) -> None:
        """Queue a frame for ``flush``."""
        body = marshal.dumps(message)
        self._outgoing += HEADER.pack(len(body))
        self._outgoing += body

    def flush(self) -> None:
        """Write queued frames as far as possible without blocking. Raises Closed."""
        self._write(socket.MSG_DONTWAIT)

    def receive(self, *, block: bool) -> list[Any]:
        """Return the complete frames; with ``block``, wait for one. Raise Closed at the end."""
        frames = self._complete()
        flags = 0 if block else socket.MSG_DONTWAIT
        while not frames:
            try:
                data = self.socket.recv(RECEIVE_BYTES, flags)
            except BlockingIOError:
                return frames
            except OSError as error:
                raise Closed from error
            if not data:
                raise Closed
            self._incoming += data
            frames = self._complete()
        return frames

    def waits(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until data can be read. Return whether there is data."""
        return is_readable(seconds, self)

    def stop_reading(self) -> None:
        """Close the reading direction: after the data that has arrived, the reader gets the end of
        file."""
        with suppress(OSError):  # the connection is closed already
            self.socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self.socket.close()

    def _write(self, flags: int) -> bool:
        """Write queued frames. Return whether all are written."""
        try:
            while self._outgoing:
                part = memoryview(self._outgoing)[:RECEIVE_BYTES]
                with part:
                    sent = self.socket.send(part, flags)
                del self._outgoing[:sent]
        except OSError as error:
            if error.errno in TRY_LATER:
                return False
            raise Closed from error
        return True

    def _complete(self) -> list[Any]:
        frames, start, size = [], 0, len(self._incoming)
        while size - start >= HEADER.size:
            (length,) = HEADER.unpack_from(self._incoming, start)
            end = start + HEADER.size + length
            if end > size:
                break
            with memoryview(self._incoming)[start + HEADER.size : end] as body:
                frames.append(marshal.loads(body))  # noqa: S302 - written by our own process
            start = end
        if start:
            del self._incoming[:start]
        return frames


class Control:
    """Small messages between the sentinel and one child, each with at most one file descriptor.

    Neither side waits for the other: messages that a stopped process does not read are kept here.
    """

    def __init__(self, endpoint: socket.socket) -> None:
        endpoint.settimeout(None)
        self.socket = endpoint
        self._incoming = bytearray()
        self._descriptors: list[int] = []
        self._outgoing: deque[tuple[bytes, int | None]] = deque()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    def send(self, *message: Any, descriptor: int | None = None) -> None:
        """Send a message. If it is not sent completely, the rest follows with the next ``send`` or
        ``flush``. Raises Closed."""
        body = marshal.dumps((*message, descriptor is not None))
        own = None if descriptor is None else os.dup(descriptor)
        self._outgoing.append((HEADER.pack(len(body)) + body, own))
        self.flush()

    def flush(self) -> None:
        """Write as much as possible without blocking. Raises Closed."""
        while self._outgoing:
            frame, descriptor = self._outgoing[0]
            rights = array.array("i", [] if descriptor is None else [descriptor])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
            try:
                sent = self.socket.sendmsg([frame], ancillary, socket.MSG_DONTWAIT)
            except OSError as error:
                if error.errno in TRY_LATER:
                    return
                raise Closed from error
            self._outgoing.popleft()
            if descriptor is not None:
                os.close(descriptor)
            if sent < len(frame):
                self._outgoing.appendleft((frame[sent:], None))

    def receive(
        self, *, block: bool, most: int | None = None
    ) -> list[tuple[tuple[Any, ...], int | None]]:
        """Return messages with their descriptors. Raises Closed.

        Args:
            block: wait until there is one.
            most: maximum number; the others are left for the next call.
        """
        messages = self._complete(most)
        flags = 0 if block else socket.MSG_DONTWAIT
        while not messages:
            try:
                data, descriptors = _receive(self.socket, flags)
            except BlockingIOError:
                return messages
            except OSError as error:
                raise Closed from error
            if not data:
                raise Closed
            for descriptor in descriptors:
                # Programs started by a task must not inherit it.
                os.set_inheritable(descriptor, False)
            self._incoming += data
            self._descriptors += descriptors
            messages = self._complete(most)
        return messages

    def close(self) -> None:
        self.socket.close()
        for descriptor in (*self._descriptors, *(own for _, own in self._outgoing)):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptors.clear()
        self._outgoing.clear()

    def _complete(self, most: int | None) -> list[tuple[tuple[Any, ...], int | None]]:
        messages: list[tuple[tuple[Any, ...], int | None]] = []
        while len(self._incoming) >= HEADER.size and (most is None or len(messages) < most):
            (length,) = HEADER.unpack_from(self._incoming)
            if len(self._incoming) < HEADER.size + length:
                break
            body = bytes(self._incoming[HEADER.size : HEADER.size + length])
            *message, has_descriptor = marshal.loads(body)  # noqa: S302 - as above
            del self._incoming[: HEADER.size + length]
            messages.append((tuple(message), self._descriptors.pop(0) if has_descriptor else None))
        return messages


def _receive(endpoint: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """Return bytes and descriptors. Used because ``socket.recv_fds`` ignores its flags."""
    rights = array.array("i")
    room = socket.CMSG_LEN(DESCRIPTORS_AT_ONCE * rights.itemsize)
    data, ancillary, _, _ = endpoint.recvmsg(MESSAGE_BYTES, room, flags)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            rights.frombytes(content[: len(content) - len(content) % rights.itemsize])
    return data, list(rights)


def is_readable(seconds: float, *readers: Any) -> bool:
    """Wait up to ``seconds`` until one of the readers is readable. Return whether one is."""
    return bool(who_is_readable(seconds, *readers))


def who_is_readable(seconds: float, *readers: Any) -> set[int]:
    """Wait up to ``seconds`` until one of the readers is readable. Return the readable descriptors.

    ``select`` supports no descriptors above 1023, and creating a selector takes ten times as long.
    """
    watched = select.poll()
    for reader in readers:
        watched.register(reader, select.POLLIN)
    return {descriptor for descriptor, _ in watched.poll(max(0.0, seconds) * 1000)}


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets with room for a batch of packages."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (first, second):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVE_BYTES)
    return first, second


def take_stream(descriptor: int | None) -> Stream:
    """Return a stream over a descriptor from a control message."""
    assert descriptor is not None
    return Stream(socket.socket(fileno=descriptor))


def set_interest(selector: selectors.BaseSelector, stream: Stream) -> None:
    """Watch a registered stream for writability while it has queued data."""
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.has_outgoing else 0)
    key = selector.get_key(stream)
    if key.events != wanted:
        selector.modify(stream, wanted, key.data)


def watch_instead(
    selector: selectors.BaseSelector, watched: int | None, wanted: int | None
) -> int | None:
    """Watch another descriptor instead of the previous one, only to wake the selector. Return
    it."""
    if watched != wanted:
        if watched is not None:
            selector.unregister(watched)
        if wanted is not None:
            selector.register(wanted, selectors.EVENT_READ, lambda _events: None)
    return wanted
