"""A stand-in for IronMQ: the part of version 3 of its API that the adapter uses.

    python -m tests.servers.ironmq_stand_in PORT

Written after the API's documentation. In addition, `POST /standin/advance {"seconds": n}` advances
its clock, or with a `"prefix"` makes only the messages of such queues older, and `POST
/standin/busy {"times": n}` makes it answer the next requests with 503.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

HOST = "127.0.0.1"
PROJECT, TOKEN = "project", "token"
MOST = 100


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


@dataclass
class Kept:
    """One message."""

    id: str
    body: str
    due: float
    reserved_count: int = 0
    reservation_id: str = ""
    is_first: bool = False
    """Whether it comes before messages that were never reserved."""


@dataclass
class Queue:
    """One queue: its options, and its messages in order."""

    options: dict[str, Any] = field(default_factory=dict)
    messages: dict[str, Kept] = field(default_factory=dict)


class Service:
    """The queues of the only project."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.news = threading.Condition()
        self.busy = 0
        self._lead = 0.0
        self._numbers = itertools.count(1)

    def now(self) -> float:
        """Return the seconds of a clock that can be advanced."""
        return time.monotonic() + self._lead

    def answer(self, verb: str, path: list[str], query: dict[str, str], what: Any) -> Any:
        """Carry out a request."""
        with self.news:
            if path[0] == "standin":
                return self._standin(path[1], what)
            if self.busy:
                self.busy -= 1
                raise Refusal(503, "Service Unavailable")
            match verb, path:
                case "GET", ["queues"]:
                    return self._list(query)
                case "PUT", ["queues", name]:
                    queue = self.queues.setdefault(name, Queue())
                    queue.options |= what["queue"]
                    return {"queue": {"name": name, **queue.options}}
                case "GET", ["queues", name]:
                    queue = self._queue(name)
                    about = {"name": name, "size": len(queue.messages), **queue.options}
                    return {"queue": about}
                case "POST", ["queues", name, "messages"]:
                    return self._post(name, what["messages"])
                case "POST", ["queues", name, "reservations"]:
                    return self._reserve(name, **what)
                case "DELETE", ["queues", name, "messages"]:
                    return self._delete(name, what)
                case "DELETE", ["queues", name, "messages", message_id]:
                    del self._queue(name).messages[self._reserved(name, message_id, what).id]
                    return {"msg": "Deleted"}
                case "POST", ["queues", name, "messages", message_id, "touch"]:
                    message = self._reserved(name, message_id, what)
                    message.reservation_id = uuid.uuid4().hex
                    message.due = self.now() + what["timeout"]
                    return {"reservation_id": message.reservation_id, "msg": "Touched"}
                case "POST", ["queues", name, "messages", message_id, "release"]:
                    message = self._reserved(name, message_id, what)
                    message.reservation_id = ""
                    message.due = self.now() + what.get("delay", 0)
                    self.news.notify_all()
                    return {"msg": "Released"}
        raise Refusal(404, "Not found")

    def _standin(self, verb: str, what: Any) -> Any:
        if verb == "advance" and "prefix" in what:
            for name in [name for name in self.queues if name.startswith(what["prefix"])]:
                for message in self.queues[name].messages.values():
                    message.due -= what["seconds"]
        elif verb == "advance":
            self._lead += what["seconds"]
        else:
            self.busy = what["times"]
        return {"msg": "Done"}

    def _list(self, query: dict[str, str]) -> Any:
        prefix, previous = query.get("prefix", ""), query.get("previous", "")
        names = sorted(name for name in self.queues if name.startswith(prefix) and name > previous)
        return {"queues": [{"name": name} for name in names[: int(query.get("per_page", 30))]]}

    def _queue(self, name: str) -> Queue:
        if name not in self.queues:
            raise Refusal(404, "Queue not found")
        return self.queues[name]

    def _post(self, name: str, posted: list[dict[str, Any]]) -> Any:
        queue = self.queues.setdefault(name, Queue())
        ids = []
        for one in posted:
            message = Kept(str(next(self._numbers)), one["body"], self.now() + one.get("delay", 0))
            queue.messages[message.id] = message
            ids.append(message.id)
        self.news.notify_all()
        return {"ids": ids, "msg": "Messages put on queue."}

    def _reserve(self, name: str, n: int, timeout: float, wait: float) -> Any:
        queue, until = self._queue(name), time.monotonic() + wait
        if not 0 < n <= MOST:
            raise Refusal(400, f"n is from 1 to {MOST}")
        while not (found := self._due(queue)[:n]) and (left := until - time.monotonic()) > 0:
            self.news.wait(min(left, 0.1))
        for message in found:
            message.reserved_count += 1
            message.reservation_id = uuid.uuid4().hex
            message.due = self.now() + timeout
            message.is_first = True  # after its timeout or release
        names = ("id", "body", "reserved_count", "reservation_id")
        return {"messages": [{key: getattr(one, key) for key in names} for one in found]}

    def _due(self, queue: Queue) -> list[Kept]:
        now = self.now()
        due = [message for message in queue.messages.values() if message.due <= now]
        return sorted(due, key=lambda message: not message.is_first)

    def _reserved(self, name: str, message_id: str, what: Any) -> Kept:
        message = self._queue(name).messages.get(message_id)
        if message is None:
            raise Refusal(404, "Message not found")
        is_own = message.reservation_id and what.get("reservation_id") == message.reservation_id
        if not is_own or message.due <= self.now():
            raise Refusal(403, "Reservation has timed out")
        return message

    def _delete(self, name: str, what: Any) -> Any:
        queue = self._queue(name)
        if "ids" not in what:
            queue.messages.clear()
            return {"msg": "Cleared"}
        for message in [self._reserved(name, one["id"], one) for one in what["ids"]]:
            del queue.messages[message.id]
        return {"msg": "Deleted"}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service: Service

    def do_GET(self) -> None:
        """Answer any request."""
        what = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            status, told = 200, self._told(json.loads(what or b"{}"))
        except Refusal as refusal:
            status, told = refusal.status, {"msg": str(refusal)}
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - by these names they are called

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _told(self, what: Any) -> Any:
        parts = urlsplit(self.path)
        path = [unquote(one) for one in parts.path.strip("/").split("/")]
        if path[0] != "standin":
            if self.headers.get("Authorization") != f"OAuth {TOKEN}":
                raise Refusal(401, "Invalid authentication")
            if path[:3] != ["3", "projects", PROJECT] or len(path) < 4:
                raise Refusal(404, "Project not found")
            path = path[3:]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return self.service.answer(self.command, path, query, what)


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 128


def main(port: int) -> None:
    """Serve until killed."""
    Handler.service = Service()
    Server((HOST, port), Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
