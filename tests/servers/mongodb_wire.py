"""The frames of MongoDB's wire protocol, and a server for them.

Usage: python -m tests.servers.mongodb_wire PORT [REPLICA_SET]
"""

from __future__ import annotations

import socketserver
import struct
import sys
from contextlib import suppress
from typing import Any

from bson import BSON, decode
from bson.codec_options import CodecOptions

from tests.servers.mongodb_documents import Document
from tests.servers.mongodb_stand_in import Server

OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
OPTIONS: CodecOptions[Document] = CodecOptions(tz_aware=True)


class Connection(socketserver.BaseRequestHandler):
    """Reads the old OP_QUERY of a driver's first request, and OP_MSG."""

    server: Any

    def handle(self) -> None:
        """Answer until the client disconnects."""
        with suppress(ConnectionError, OSError):
            while header := self._read(16):
                length, number, _, kind = struct.unpack("<iiii", header)
                body = self._read(length - 16)
                self._answer(number, kind, body)

    def _answer(self, number: int, kind: int, body: bytes) -> None:
        if kind == OP_QUERY:
            at = body.index(b"\0", 4) + 9
            reply = self.server.mongodb.answer(decode(body[at:], OPTIONS))
            frame = struct.pack("<iqii", 8, 0, 0, 1) + BSON.encode(reply)
            self._send(number, OP_REPLY, frame)
        elif kind == OP_MSG:
            flags, command = _command(body)
            reply = self.server.mongodb.answer(command)
            if not flags & 2:  # the driver wants no answer with this flag
                self._send(number, OP_MSG, struct.pack("<IB", 0, 0) + BSON.encode(reply))
        else:
            raise ConnectionError(f"opcode {kind}")

    def _send(self, to: int, kind: int, body: bytes) -> None:
        self.request.sendall(struct.pack("<iiii", 16 + len(body), 0, to, kind) + body)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.request.recv(min(size - len(parts), 2**20))
            if not part:
                return b""
            parts += part
        return bytes(parts)


def _command(body: bytes) -> tuple[int, Document]:
    """Put together the sections of an OP_MSG."""
    (flags,) = struct.unpack_from("<I", body)
    end = len(body) - (4 if flags & 1 else 0)
    command: Document = {}
    sequences: Document = {}
    at = 4
    while at < end:
        kind = body[at]
        (size,) = struct.unpack_from("<i", body, at + 1)
        section = body[at + 1 : at + 1 + size]
        if kind == 0:
            command = decode(section, OPTIONS)
        else:
            name_end = section.index(b"\0", 4)
            name, place, documents = section[4:name_end].decode(), name_end + 1, []
            while place < size:
                (length,) = struct.unpack_from("<i", section, place)
                documents.append(decode(section[place : place + length], OPTIONS))
                place += length
            sequences[name] = documents
        at += 1 + size
    return flags, command | sequences


class Listener(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    mongodb: Server


def main(port: int, replica_set: str = "") -> None:
    """Serve on loopback until killed."""
    with Listener(("127.0.0.1", port), Connection) as listener:
        listener.mongodb = Server(port, replica_set)
        listener.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3])
