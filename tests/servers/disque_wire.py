"""A node of the Disque stand-in with real sockets: its commands in RESP, and the nodes' messages.

    python -m tests.servers.disque_wire PORT [PORT OF ANOTHER NODE]...

Besides Disque's commands it has `STANDIN ADVANCE seconds [prefix]`, which moves its clock, or only
makes the jobs of the queues with this prefix older. The nodes send one another `PEER port kind
...`, which has no reply.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from tests.servers.disque_stand_in import OTHERS_WAIT_SECONDS, Job, Node

HOST = "127.0.0.1"
TICK_SECONDS = 0.05
LATE_SECONDS = 0.1
"""Disque looks for timed-out commands ten times a second, so it answers them late."""


class Refusal(Exception):
    """An error that is sent to a client."""


class Wire:
    """One node's sockets."""

    def __init__(self, port: int, others: Collection[int]) -> None:
        self.node = Node(port, self.tell)
        self.others = frozenset(others)
        self._lines: dict[int, asyncio.StreamWriter] = {}
        self._confirmed: dict[bytes, set[int]] = {}
        self._news = asyncio.Condition()
        self._waiting = 0

    async def run(self) -> None:
        """Serve until killed."""
        server = await asyncio.start_server(self._serve, HOST, self.node.port)
        async with server, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            for port in self.others:
                tasks.create_task(self._stay_connected(port))

    # -- nodes ------------------------------------------------------------------------------------

    def tell(self, ports: Collection[int], *words: Any) -> None:
        """Send a message to those of these nodes that are connected."""
        raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        told = packed([b"PEER", b"%d" % self.node.port, *raw])
        for port in ports:
            if port in self._lines:
                self._lines[port].write(told)

    async def _stay_connected(self, port: int) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(HOST, port)
                self._lines[port] = writer
                with suppress(OSError):
                    while await reader.read(4096):
                        pass
                del self._lines[port]
                writer.close()
            await asyncio.sleep(TICK_SECONDS)

    async def _hear(self, port: int, kind: bytes, words: list[bytes]) -> None:
        node = self.node
        if kind == b"ADD":
            job_id, queue, body, retry, ttl, delay, is_mine, *holders = words
            now = node.now()
            if job_id not in node.jobs:
                due = now + float(delay) + (0 if is_mine == b"1" else OTHERS_WAIT_SECONDS)
                job = Job(job_id, queue, body, float(retry), now + float(ttl), due)
                job.is_queued = is_mine == b"1"
                node.keep(job)
            elif is_mine == b"1":
                node.enqueue(node.jobs[job_id])
            node.jobs[job_id].holders |= {*map(int, holders), node.port}
            self.tell([port], b"GOT", job_id)
        elif kind == b"GOT":
            self._confirmed.setdefault(words[0], set()).add(port)
        elif kind == b"ACK":
            node.forget(words[0])
        elif kind == b"QUEUED":
            node.put_off(words[0], port)
        elif kind == b"NEED":
            for job in node.take(words[0], int(words[1])):
                job.holders.add(port)
                self._copy([port], job, is_mine=True)
                node.put_off(job.id, port)
        async with self._news:
            self._news.notify_all()

    def _copy(self, ports: Collection[int], job: Job, *, is_mine: bool) -> None:
        now = self.node.now()
        words = (job.id, job.queue, job.body, job.retry, job.ends - now)
        delay = 0.0 if is_mine else max(0.0, job.due - now)
        self.tell(ports, b"ADD", *words, delay, int(is_mine), *job.holders)

    async def _tick(self) -> None:
        while True:
            self.node.run_timers()
            if self._waiting:
                async with self._news:
                    self._news.notify_all()
            await asyncio.sleep(TICK_SECONDS)

    # -- clients ----------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while words := await read_words(reader):
                name, *rest = words
                if name.upper() == b"PEER":
                    await self._hear(int(rest[0]), rest[1], rest[2:])
                    continue
                try:
                    answer = await self._answer(name.upper().decode(), rest)
                except Refusal as refusal:
                    answer = refusal
                except (ValueError, IndexError):
                    answer = Refusal("ERR syntax error")
                writer.write(packed(answer))
                await writer.drain()
        writer.close()

    async def _answer(self, name: str, words: list[bytes]) -> Any:
        method = getattr(self, f"_{name.lower()}", None)
        if name not in COMMANDS or method is None:
            raise Refusal(f"ERR unknown command '{name}'")
        return await method(words)

    async def _ping(self, words: list[bytes]) -> Any:
        return "PONG"

    async def _info(self, words: list[bytes]) -> Any:
        return b"# Server\r\ndisque_version:stand-in\r\n"

    async def _hello(self, words: list[bytes]) -> Any:
        known = sorted({self.node.port, *self._lines})
        return [1, self.node.id, *([Node(port, print).id, HOST, port, 1] for port in known)]

    async def _standin(self, words: list[bytes]) -> Any:
        self.node.advance(float(words[1]), *words[2:])
        self.node.run_timers()
        return "OK"

    async def _addjob(self, words: list[bytes]) -> Any:
        queue, body, timeout_ms, *rest = words
        options = {"REPLICATE": 1, "RETRY": 60, "TTL": 86_400, "DELAY": 0}
        while rest:
            option, value, *rest = rest
            options[option.upper().decode()] = int(value)
        node, copies = self.node, options["REPLICATE"] - 1
        delay, ttl = options["DELAY"], options["TTL"]
        job = node.new_job(queue, body, retry=options["RETRY"], ttl=ttl, delay=delay)
        if copies:
            ports = sorted(self._lines)[:copies]  # if there are fewer, the time runs out
            job.holders |= set(ports)
            self._copy(ports, job, is_mine=False)
            await self._confirmations(job.id, copies, int(timeout_ms) / 1000)
        job.is_queued = delay == 0
        node.keep(job)
        await self._call()
        return job.id

    async def _confirmations(self, job_id: bytes, count: int, seconds: float) -> None:
        try:
            async with self._news:
                enough = self._news.wait_for(lambda: len(self._confirmed.get(job_id, ())) >= count)
                await asyncio.wait_for(enough, seconds)
        except TimeoutError:
            self.tell(self.others, b"ACK", job_id)
            await asyncio.sleep(LATE_SECONDS)
            raise Refusal("NOREPL Timeout reached before enough copies were made") from None
        finally:
            self._confirmed.pop(job_id, None)

    async def _getjob(self, words: list[bytes]) -> Any:
        place = next(place for place, word in enumerate(words) if word.upper() == b"FROM")
        options, queues = [word.upper() for word in words[:place]], words[place + 1 :]
        count = int(options[options.index(b"COUNT") + 1]) if b"COUNT" in options else 1
        found = self._deliver(queues, count)
        if found or b"NOHANG" in options:
            return found or None
        ms = int(options[options.index(b"TIMEOUT") + 1]) if b"TIMEOUT" in options else 0
        self._waiting += 1
        try:
            async with asyncio.timeout(ms / 1000 if ms else None):
                while not found:
                    for queue in queues:
                        self.tell(self.others, b"NEED", queue, count)
                    async with self._news:
                        await self._news.wait()
                    found = self._deliver(queues, count)
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1
        return found

    def _deliver(self, queues: list[bytes], count: int) -> list[Any]:
        found: list[Any] = []
        for queue in queues:
            jobs = self.node.deliver(queue, count - len(found))
            found += [[job.queue, job.id, job.body] for job in jobs]
        return found

    async def _ackjob(self, words: list[bytes]) -> Any:
        return sum(self.node.acknowledge(job_id, self.others) for job_id in words)

    async def _working(self, words: list[bytes]) -> Any:
        if (job := self.node.jobs.get(words[0])) is None:
            raise Refusal("NOJOB Job not known in the context of this node.")
        return self.node.work_on(job)

    async def _nack(self, words: list[bytes]) -> Any:
        jobs = [self.node.jobs[job_id] for job_id in words if job_id in self.node.jobs]
        for job in reversed(jobs):
            job.nacks += 1
            self.node.enqueue(job, first=True)
        await self._call()
        return len(jobs)

    async def _qlen(self, words: list[bytes]) -> Any:
        return self.node.length(words[0])

    async def _qscan(self, words: list[bytes]) -> Any:
        """List queues, including empty ones: Disque forgets a queue only after minutes."""
        return [b"0", list(self.node.queues)]

    async def _jscan(self, words: list[bytes]) -> Any:
        pairs = list(zip(words[1::2], words[2::2], strict=True))
        queues = {value for option, value in pairs if option.upper() == b"QUEUE"}
        states = {value for option, value in pairs if option.upper() == b"STATE"}
        return [
            b"0",
            [
                job.id
                for job in self.node.jobs.values()
                if job.queue in queues and (b"queued" if job.is_queued else b"active") in states
            ],
        ]

    async def _call(self) -> None:
        if self._waiting:
            async with self._news:
                self._news.notify_all()


COMMANDS = (
    "PING", "INFO", "HELLO", "STANDIN", "ADDJOB", "GETJOB", "ACKJOB", "WORKING", "NACK", "QLEN",
    "QSCAN", "JSCAN",
)  # fmt: skip


async def read_words(reader: asyncio.StreamReader) -> list[bytes]:
    """Read one command. Empty at the end."""
    head = await reader.readline()
    words = []
    for _ in range(int(head[1:]) if head else 0):
        size = int((await reader.readline())[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


def packed(value: Any) -> bytes:
    """Encode a value in RESP."""
    match value:
        case None:
            return b"*-1\r\n"
        case Refusal():
            return f"-{value}\r\n".encode()
        case str():
            return f"+{value}\r\n".encode()
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(value), value)
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(packed, value))
    raise TypeError(value)


def main(port: int, others: Collection[int]) -> None:
    """Run one node until it is killed."""
    asyncio.run(Wire(port, others).run())


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(one) for one in sys.argv[2:]])
