"""Checks whether a server accepts a connection with these credentials, without a driver.

An open port is not enough: the server may need a password, or be another program. Each function
returns if the server can be used, and raises OSError with the reason otherwise.
"""

import socket
import struct

SECONDS = 3
HOST = "127.0.0.1"


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("the server closed the connection")
        data += part
    return data


def greet_redis(port: int) -> None:
    """Send PING and expect PONG."""
    with socket.create_connection((HOST, port), SECONDS) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        answer = connection.recv(200)
    if not answer.startswith(b"+PONG"):
        raise ConnectionError(f"it answered {answer.decode(errors='replace').strip()!r}")


def greet_memcached(port: int) -> None:
    """Send `version` and expect a version."""
    with socket.create_connection((HOST, port), SECONDS) as connection:
        connection.sendall(b"version\r\n")
        answer = connection.recv(200)
    if not answer.startswith(b"VERSION "):
        raise ConnectionError(f"it answered {answer.decode(errors='replace').strip()!r}")


def greet_ironmq(port: int) -> None:
    """Call something that only the stand-in has."""
    with socket.create_connection((HOST, port), SECONDS) as connection:
        connection.sendall(
            b'POST /standin/busy HTTP/1.1\r\nHost: here\r\nContent-Length: 12\r\n\r\n{"times": 0}'
        )
        answer = connection.recv(200)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"it answered {answer.decode(errors='replace').strip()!r}")


def greet_mongodb(port: int) -> None:
    """Send hello in an OP_MSG and expect an OP_MSG."""
    hello = b"\x10hello\0\x01\0\0\0" + b"\x02$db\0\x06\0\0\0admin\0"
    command = struct.pack("<i", 4 + len(hello) + 1) + hello + b"\0"
    body = struct.pack("<IB", 0, 0) + command
    with socket.create_connection((HOST, port), SECONDS) as connection:
        connection.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body)
        answer = _read(connection, 16)
    if struct.unpack("<iiii", answer)[3] != 2013:
        raise ConnectionError(f"it answered {answer!r}")


def greet_postgres(port: int, user: str) -> None:
    """Log in without a password, and check that this user may create databases."""
    with socket.create_connection((HOST, port), SECONDS) as connection:
        names = f"user\0{user}\0database\0postgres\0\0".encode()
        connection.sendall(struct.pack("!II", 8 + len(names), 196608) + names)
        _read_postgres_until_ready(connection)
        query = (
            b"SELECT 1 FROM pg_roles WHERE rolname = current_user AND (rolcreatedb OR rolsuper)\0"
        )
        connection.sendall(b"Q" + struct.pack("!I", 4 + len(query)) + query)
        if b"D" not in _read_postgres_until_ready(connection):
            raise ConnectionError(f"user {user!r} may not create databases")


def _read_postgres_until_ready(connection: socket.socket) -> set[bytes]:
    kinds: set[bytes] = set()
    while b"Z" not in kinds:
        kind, length = struct.unpack("!cI", _read(connection, 5))
        body = _read(connection, length - 4)
        if kind == b"R" and body[:4] != bytes(4):
            raise ConnectionError("it wants a password")
        if kind == b"E":
            fields = [field[1:].decode(errors="replace") for field in body.split(b"\0") if field]
            raise ConnectionError(fields[3] if len(fields) > 3 else "it refused")
        kinds.add(kind)
    return kinds


def greet_sqs(port: int) -> None:
    """Call our moto's own path: another moto has no clock that can be advanced."""
    with socket.create_connection((HOST, port), SECONDS) as connection:
        connection.sendall(b"GET /stoker-test/ HTTP/1.0\r\n\r\n")
        if not connection.recv(4096).startswith(b"HTTP/1.1 204"):
            raise ConnectionError("it is no moto of ours")


def greet_mysql(port: int, user: str) -> None:
    """Log in to MariaDB or MySQL without a password."""
    with socket.create_connection((HOST, port), SECONDS) as connection:
        _, greeting = _read_mysql_packet(connection)
        if greeting[0] == 0xFF:
            raise ConnectionError(greeting[3:].decode(errors="replace"))
        # Protocol 4.1, long password, transactions, secure connection, plugin authentication.
        flags = 0x00000200 | 0x00000001 | 0x00002000 | 0x00008000 | 0x00080000
        login = struct.pack("<IIB23x", flags, 2**24 - 1, 45)
        login += user.encode() + b"\0" + b"\0" + b"mysql_native_password\0"
        _send_mysql_packet(connection, 1, login)
        number, answer = _read_mysql_packet(connection)
        if (
            answer[0] == 0xFE
        ):  # "use another way": without a password all of them are answered by nothing
            _send_mysql_packet(connection, number + 1, b"")
            _, answer = _read_mysql_packet(connection)
        if answer[0] != 0:
            raise ConnectionError(answer[9:].decode(errors="replace") or "it wants a password")


def _read_mysql_packet(connection: socket.socket) -> tuple[int, bytes]:
    header = _read(connection, 4)
    return header[3], _read(connection, int.from_bytes(header[:3], "little"))


def _send_mysql_packet(connection: socket.socket, number: int, body: bytes) -> None:
    connection.sendall(len(body).to_bytes(3, "little") + bytes([number]) + body)
