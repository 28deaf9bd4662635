"""The nodes of a Disque cluster: choose a node for each command, and avoid nodes that fail.

Any node accepts any command. The client prefers the node that most jobs come from, because every
other node must fetch those jobs from it first. A node that does not answer is avoided for some
seconds.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable

PORT = 7711
USUAL_COPIES = 2
AWAY_SECONDS = 5.0
"""Time in seconds for which a node that did not answer is tried only after all other nodes."""
SHORTEST_SECONDS = 0.5
ORIGIN_LENGTH = 8
"""Length of the node id's prefix that job ids contain: ``D-<origin>-...``."""
ENOUGH_JOBS = 200
"""Number of received jobs after which the preferred node is chosen again."""
FAILURES = (RedisError, OSError)
TOO_FEW_COPIES = "NOREPL"
ADVICE = {
    TOO_FEW_COPIES: "Start more nodes, or write a smaller ?replicate= in BROKER.",
    "NOAUTH": "Write the password in BROKER: disque://:PASSWORD@HOST:7711.",
    "OOM": "Its memory is full: raise maxmemory, or let clusters run the waiting jobs.",
    "LEAVING": "This node is leaving: name others in BROKER.",
}

Command = Sequence[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DisqueNode:
    """Address of a node."""

    host: str
    port: int


class Nodes:
    """The nodes named by ``disque://:PASSWORD@HOST:PORT,HOST:PORT?replicate=N``, and the other
    nodes of their cluster.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._password, self._named, self.copies = _parsed(settings)
        self._lock = threading.Lock()
        self._pools: dict[tuple[DisqueNode, float, float], redis.ConnectionPool] = {}
        self._away_until: dict[DisqueNode, float] = {}
        self._current = random.choice(self._named)  # noqa: S311 - to spread the clients
        self._origins: dict[str, DisqueNode] = {}
        self._jobs_from: Counter[str] = Counter()

    # -- asking -----------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Deadline for the answer of one node. A call can ask all named nodes within
        ``DATABASE_SECONDS``, and a second node if only one is named: see ``_in_time``."""
        count = max(len(self._named), min(2, len(self._all())))
        return max(SHORTEST_SECONDS, self._settings.database_seconds / count)

    @property
    def copy_milliseconds(self) -> int:
        """How long a node may wait for copies of a job. A node answers ``NOREPL`` only after that
        time, so it must be well below the socket's time-out."""
        return round(self.seconds * 1000 / 2)

    def ask(self, command: Command, *, wait_seconds: float = 0.0) -> Any:
        """Send a command to one node after another and return the first answer.

        Raises:
            BrokerUnavailable: no node answers in time.
        """
        failure: Exception | None = None
        for node in self.each():
            (answer,) = self.answers(node, [command], wait_seconds=wait_seconds)
            if not isinstance(answer, Exception):
                return answer
            failure = answer
        raise self.explain(failure)

    def first_answer(self, command: Command) -> Any:
        """Ask the reachable nodes in order and return the first answer that is not empty, or None.

        Raises:
            BrokerUnavailable: no node answers.
        """
        answers: list[Any] = []
        for node in self.reachable():
            answers += self.answers(node, [command])
            if answers[-1] and not isinstance(answers[-1], Exception):
                return answers[-1]
        if all(isinstance(one, Exception) for one in answers):
            raise self.explain(next(iter(answers), None))
        return None

    def of_each(self, ask: Callable[[DisqueNode], T]) -> list[T]:
        """Call ``ask`` for each reachable node. Return the results, without those of nodes that
        turned out to be away: ``ask`` raises one of ``FAILURES`` for such a node.

        Raises:
            BrokerUnavailable: no node answers.
        """
        found: list[T] = []
        failure: Exception | None = None
        for node in self.reachable():
            try:
                found.append(ask(node))
            except FAILURES as error:
                failure = error
        if not found:
            raise self.explain(failure)
        return found

    def answers(
        self, node: DisqueNode | None, commands: Sequence[Command], *, wait_seconds: float = 0.0
    ) -> list[Any]:
        """Send the commands to ``node``, or to the preferred node, and return its answers in order.
        A command that is refused or not answered has an exception in its place."""
        if not commands:
            return []
        asked = next(self.each()) if node is None else node
        answers: list[Any] = []
        try:
            self._read_answers(asked, commands, wait_seconds, answers)
        except FAILURES as error:
            return answers + self._gone(asked, error, len(commands) - len(answers))
        self._away_until.pop(asked, None)
        return answers + answers[-1:] * (len(commands) - len(answers))

    def _read_answers(
        self, node: DisqueNode, commands: Sequence[Command], wait_seconds: float, answers: list[Any]
    ) -> None:
        """Send the commands together, and append each answer or refusal to ``answers``.

        Stop at the first job that cannot be copied to enough nodes: the node would let each of the
        jobs after it wait for its whole time-out, and refuse it, too.
        """
        deadline = time.monotonic() + self.seconds + wait_seconds
        pool = self._pool(node, wait_seconds)
        connection: Any = pool.get_connection()
        is_clean = False
        try:
            connection.send_packed_command(connection.pack_commands(commands))
            for _ in commands:
                answers.append(_answer(connection, deadline))
                if _says(answers[-1], TOO_FEW_COPIES):
                    return
            is_clean = True
        finally:
            if not is_clean:  # unread answers must not be taken for answers to later commands
                connection.disconnect()
            pool.release(connection)

    def each(self) -> Iterator[DisqueNode]:
        """Yield the preferred node, then the others in random order, then the nodes that failed
        recently. Stop when the time of the call is over: see ``_in_time``."""
        return self._in_time(self._in_order())

    def reachable(self) -> Iterator[DisqueNode]:
        """Yield the nodes that have not failed recently, or all nodes if every one has failed. Stop
        when the time of the call is over: see ``_in_time``."""
        now, line = time.monotonic(), self._in_order()
        near = [node for node in line if self._away_until.get(node, 0.0) <= now]
        return self._in_time(near or line)

    def _in_order(self) -> list[DisqueNode]:
        now = time.monotonic()
        others = [node for node in self._all() if node != self._current]
        random.shuffle(others)
        line = [self._current, *others]
        return sorted(line, key=lambda node: self._away_until.get(node, 0.0) > now)

    def _in_time(self, nodes: Sequence[DisqueNode]) -> Iterator[DisqueNode]:
        """Yield the first node, and each further node if at least a quarter of its deadline is left
        of ``DATABASE_SECONDS``. Otherwise a call would take longer for each silent node that this
        process has learnt of. The next call asks the other nodes first."""
        until = time.monotonic() + self._settings.database_seconds - self.seconds / 4
        for place, node in enumerate(nodes):
            if place and time.monotonic() > until:
                return
            yield node

    # -- the choice of nodes ----------------------------------------------------------------------

    def note_origins(self, job_ids: Iterable[bytes]) -> None:
        """Count which nodes these jobs come from. Prefer the node that more than half of them come
        from."""
        origins = [
            job_id.partition(b"-")[2][:ORIGIN_LENGTH].decode(errors="replace") for job_id in job_ids
        ]
        with self._lock:
            self._jobs_from.update(origins)
            total = self._jobs_from.total()
            if total < ENOUGH_JOBS:
                return
            ((origin, count),) = self._jobs_from.most_common(1)
            self._jobs_from.clear()
        if count * 2 <= total:
            return
        if origin not in self._origins:
            self._meet()
        node = self._origins.get(origin, self._current)
        if self._away_until.get(node, 0.0) <= time.monotonic():
            self._current = node

    def _meet(self) -> None:
        """Ask a node for the list of all nodes, and remember their addresses by id prefix."""
        for node in list(self.reachable()):
            (answer,) = self.answers(node, [["HELLO"]])
            if isinstance(answer, Exception):
                continue
            for node_id, host, port, *_ in answer[2:]:
                there = DisqueNode(host.decode() or node.host, int(port))
                self._origins[node_id.decode()[:ORIGIN_LENGTH]] = there
            return

    def _all(self) -> list[DisqueNode]:
        return list(dict.fromkeys([*self._named, *self._origins.values()]))

    def _gone(self, node: DisqueNode, error: Exception, count: int) -> list[Any]:
        self._away_until[node] = time.monotonic() + AWAY_SECONDS
        if node == self._current:
            others = [one for one in self._all() if one not in self._away_until]
            self._current = random.choice(others or self._all())  # noqa: S311 - as above
        return [error] * count

    # -- connections ------------------------------------------------------------------------------

    def _pool(self, node: DisqueNode, wait_seconds: float) -> redis.ConnectionPool:
        seconds = self.seconds
        with self._lock:
            pool = self._pools.get((node, seconds, wait_seconds))
            if pool is None:
                pool = redis.ConnectionPool(
                    host=node.host,
                    port=node.port,
                    password=self._password,
                    socket_timeout=seconds + wait_seconds,
                    socket_connect_timeout=seconds,
                    socket_keepalive=True,
                    protocol=2,
                    retry=Retry(NoBackoff(), 0),
                )
                self._pools[node, seconds, wait_seconds] = pool
            return pool

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.disconnect()

    # -- words ------------------------------------------------------------------------------------

    def explain(self, error: Exception | None) -> BrokerUnavailable:
        """Return an error that names the broker, the reason and a remedy."""
        said = str(error or "no node is known").rstrip(".")
        advice = ADVICE.get(said.partition(" ")[0], "")
        if isinstance(error, AuthenticationError):
            advice = ADVICE["NOAUTH"]
        where = self._settings.shown_broker
        told = BrokerUnavailable(
            f"{where} could not process the request: {said}. {advice}".rstrip()
        )
        told.__cause__ = error
        return told

    def weaknesses(self) -> list[str]:
        """Return a sentence for each problem of the nodes that may lose jobs.

        Raises:
            BrokerUnavailable: no node answers.
        """
        self.ask(["PING"])
        found = []
        away = [node for node in self._named if not self._answers(node)]
        found += [f"{node.host}:{node.port} does not answer." for node in away]
        if self.copies < USUAL_COPIES:
            found.append(
                "Each job is on one node of Disque only, and is lost with it: start another node, "
                "and name it in BROKER."
            )
        return found

    def _answers(self, node: DisqueNode) -> bool:
        (answer,) = self.answers(node, [["PING"]])
        return not isinstance(answer, Exception)


def _answer(connection: Any, deadline: float) -> Any:
    """Read one answer. Return a refusal as an exception.

    Raises:
        RedisError, OSError: the connection failed or the deadline has passed.
    """
    if time.monotonic() > deadline:
        raise RedisTimeoutError("the answers to all commands took too long")
    try:
        return connection.read_response()
    except ResponseError as refusal:
        return refusal


def _says(answer: Any, code: str) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith(code)


def _parsed(settings: Settings) -> tuple[str | None, list[DisqueNode], int]:
    try:
        parts = urlsplit(settings.broker)
        login, _, hosts = parts.netloc.rpartition("@")
        nodes = [_node(one) for one in hosts.split(",")]
        given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        copies = _copies(given, min(len(nodes), USUAL_COPIES))
    except ValueError as error:
        example = "disque://HOST:PORT,HOST:PORT, say disque://127.0.0.1:7711"
        raise settings.wrong_broker(error, example) from None
    return unquote(login.rpartition(":")[2]) or None, nodes, copies


def _copies(given: dict[str, str], usual: int) -> int:
    unknown = set(given) - {"replicate"}
    if unknown:
        raise ValueError(f"there is no option {min(unknown)!r}, only replicate")
    text = given.get("replicate", str(usual))
    if not (text.isdecimal() and 0 < int(text) < 2**16):
        raise ValueError(f"replicate is {text!r}, not a number of copies")
    return int(text)


def _node(text: str) -> DisqueNode:
    host, _, port = text.strip().rpartition(":") if ":" in text else (text.strip(), "", "")
    if not host:
        raise ValueError("the name of a host is missing")
    if port and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError("a port is not a number")
    return DisqueNode(host, int(port or PORT))
