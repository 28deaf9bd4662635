"""A small server that speaks MongoDB's wire protocol, for tests of the adapter over a real socket.

Its frames are in mongodb_wire.py, and what it knows of documents in mongodb_documents.py.

Documents are kept in memory, each command is carried out alone. It knows the commands and operators
that the adapter uses, refuses all others, and keeps to what MongoDB documents about them: unique
`_id`, retryable writes answered a second time without being carried out again, `$$NOW`, cursors in
batches, and, as the one member of a replica set, change streams. No journal, no elections, no TTL
monitor, no plans: what those do is not tested here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

from bson.timestamp import Timestamp

from tests.servers.mongodb_documents import (
    Document,
    RefusedError,
    aggregated,
    changed,
    frozen,
    in_order,
    matches,
    now,
)

BATCH = 101
VERSION = "7.0.0"


class CommandError(Exception):
    """A command that cannot be carried out: code and sentence."""


class Server:
    """The collections, and the commands on them."""

    def __init__(self, port: int, replica_set: str) -> None:
        self.port = port
        self.replica_set = replica_set
        self.changed = threading.Condition(threading.RLock())
        self.collections: dict[str, dict[Any, Document]] = {}
        self.events: list[tuple[str, Document]] = []
        self.cursors: dict[int, Any] = {}
        self.answered: dict[tuple[bytes, int], Document] = {}
        self.numbers = count(1)

    def answer(self, command: Document) -> Document:
        """Carry out a command."""
        name = next(iter(command))
        act: Callable[[Document], Document] | None = getattr(self, f"do_{name.lower()}", None)
        if act is None:
            return {"ok": 0.0, "errmsg": f"no such command: {name}", "code": 59}
        number = command.get("txnNumber")
        try:
            with self.changed:
                key = (bytes(command["lsid"]["id"]), number) if number is not None else None
                if key in self.answered:
                    return self.answered[key]
                reply = {**act(command), "ok": 1.0}
                if key is not None:
                    self.answered[key] = reply
                return reply
        except CommandError as error:
            return {"ok": 0.0, "code": error.args[0], "errmsg": error.args[1]}
        except RefusedError as error:
            return {"ok": 0.0, "code": 9, "errmsg": f"the stand-in refuses: {error}"}

    def _documents(self, command: Document) -> dict[Any, Document]:
        return self.collections.setdefault(self._place(command), {})

    def _place(self, command: Document) -> str:
        return f"{command['$db']}.{next(iter(command.values()))}"

    def _found(self, documents: dict[Any, Document], wanted: Document) -> list[Document]:
        """Look up by `_id` if the filter has one, as the index would."""
        wish = wanted.get("_id")
        if isinstance(wish, dict) and "$in" in wish:
            keys = dict.fromkeys(map(frozen, wish["$in"]))
        elif wish is not None and not isinstance(wish, dict):
            keys = {frozen(wish): None}
        else:
            return [one for one in documents.values() if matches(one, wanted)]
        rest = {name: condition for name, condition in wanted.items() if name != "_id"}
        there = [documents[key] for key in keys if key in documents]
        return [one for one in there if matches(one, rest)]

    # -- handshake --------------------------------------------------------------------------------

    def do_hello(self, _command: Document) -> Document:
        """Answer the handshake."""
        me = f"127.0.0.1:{self.port}"
        member: Document = {"setName": self.replica_set, "hosts": [me], "me": me, "primary": me}
        member |= {"setVersion": 1, "secondary": False}
        return {
            "helloOk": True,
            "isWritablePrimary": True,
            "ismaster": True,
            "maxBsonObjectSize": 16 * 2**20,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
            "logicalSessionTimeoutMinutes": 30,
            "localTime": now(),
            "minWireVersion": 0,
            "maxWireVersion": 21,
            "readOnly": False,
            **(member if self.replica_set else {}),
        }

    do_ismaster = do_hello

    def do_ping(self, _command: Document) -> Document:
        """Answer."""
        return {}

    do_endsessions = do_createindexes = do_ping

    def do_buildinfo(self, _command: Document) -> Document:
        """Return the version that it imitates."""
        return {"version": VERSION, "versionArray": [7, 0, 0, 0]}

    # -- writing ----------------------------------------------------------------------------------

    def do_insert(self, command: Document) -> Document:
        """Insert documents. Refuse an existing `_id`, and insert the others."""
        documents, errors, added = self._documents(command), [], 0
        for index, one in enumerate(command["documents"]):
            key = frozen(one["_id"])
            if key in documents:
                message = f"E11000 duplicate key error: {one['_id']!r}"
                errors.append({"index": index, "code": 11000, "errmsg": message})
                if command.get("ordered", True):
                    break
                continue
            documents[key] = one
            added += 1
            self._tell(command, "insert", one)
        return {"n": added, **({"writeErrors": errors} if errors else {})}

    def do_update(self, command: Document) -> Document:
        """Change documents."""
        documents, matched, modified = self._documents(command), 0, 0
        for update in command["updates"]:
            if update.get("upsert"):
                raise RefusedError("upsert")
            found = self._found(documents, update["q"])
            for one in found if update.get("multi") else found[:1]:
                new = changed(one, update["u"])
                matched += 1
                modified += new != one
                documents[frozen(one["_id"])] = new
                if new != one:
                    self._tell(command, "update", new)
        return {"n": matched, "nModified": modified}

    def do_delete(self, command: Document) -> Document:
        """Remove documents."""
        documents, removed = self._documents(command), 0
        for delete in command["deletes"]:
            found = self._found(documents, delete["q"])
            for one in found if not delete["limit"] else found[:1]:
                del documents[frozen(one["_id"])]
                removed += 1
        return {"n": removed}

    def do_listcollections(self, command: Document) -> Document:
        """Name the collections of a database."""
        start = f"{command['$db']}."
        names = [place.removeprefix(start) for place in self.collections if place.startswith(start)]
        found: list[Document] = [{"name": name, "type": "collection"} for name in names]
        return {"cursor": {"id": 0, "ns": f"{start}$cmd.listCollections", "firstBatch": found}}

    def do_drop(self, command: Document) -> Document:
        """Remove a collection."""
        self.collections.pop(self._place(command), None)
        return {}

    def _tell(self, command: Document, kind: str, document: Document) -> None:
        if any(isinstance(cursor, tuple) for cursor in self.cursors.values()):
            event = {"operationType": kind, "fullDocument": document}
            self.events.append((self._place(command), event))
            self.changed.notify_all()

    # -- reading ----------------------------------------------------------------------------------

    def do_find(self, command: Document) -> Document:
        """Find documents, and return the first batch."""
        found = self._found(self._documents(command), command.get("filter", {}))
        if order := command.get("sort"):
            found = in_order(found, order)
        if limit := command.get("limit"):
            found = found[: abs(limit)]
        if names := command.get("projection"):
            found = [{name: one[name] for name in ("_id", *names) if name in one} for one in found]
        return self._first_batch(command, found, command.get("batchSize", BATCH))

    def do_aggregate(self, command: Document) -> Document:
        """Run a pipeline, or open a change stream."""
        pipeline = command["pipeline"]
        if pipeline and "$changeStream" in pipeline[0]:
            if not self.replica_set:
                raise CommandError(40573, "The $changeStream stage is for replica sets only")
            number = next(self.numbers)
            self.cursors[number] = (self._place(command), pipeline[1:], len(self.events))
            return {"cursor": self._stream(number, [], "firstBatch")}
        found = aggregated(self._documents(command).values(), pipeline)
        return self._first_batch(command, found, BATCH)

    def do_getmore(self, command: Document) -> Document:
        """Return the next batch. Wait for one if it is a change stream."""
        number = command["getMore"]
        if number not in self.cursors:
            raise CommandError(43, f"cursor id {number} not found")
        if isinstance(self.cursors[number], list):
            rest: list[Document] = self.cursors.pop(number)
            place = f"{command['$db']}.{command['collection']}"
            return {"cursor": {"id": 0, "ns": place, "nextBatch": rest}}
        place, pipeline, seen = self.cursors[number]
        if len(self.events) == seen:
            self.changed.wait(command.get("maxTimeMS", 1000) / 1000)
        new = [event for where, event in self.events[seen:] if where == place]
        if number in self.cursors:
            self.cursors[number] = (place, pipeline, len(self.events))
        return {"cursor": self._stream(number, _passed(new, pipeline), "nextBatch")}

    def do_killcursors(self, command: Document) -> Document:
        """Delete cursors."""
        for number in command["cursors"]:
            self.cursors.pop(number, None)
        return {"cursorsKilled": command["cursors"]}

    def _first_batch(self, command: Document, found: list[Document], size: int) -> Document:
        number = 0
        if found[size:]:
            number = next(self.numbers)
            self.cursors[number] = found[size:]
        place = self._place(command)
        return {"cursor": {"id": number, "ns": place, "firstBatch": found[:size]}}

    def _stream(self, number: int, events: list[Document], name: str) -> Document:
        token = {"_data": f"{len(self.events):08x}"}
        batch = [{"_id": token, "operationType": event["operationType"]} for event in events]
        place = self.cursors[number][0] if number in self.cursors else ""
        cursor = {"id": number, "ns": place, "postBatchResumeToken": token, name: batch}
        return cursor | {"atClusterTime": Timestamp(1, 1)}


def _passed(events: list[Document], pipeline: list[Document]) -> list[Document]:
    for stage in pipeline:
        for name, condition in stage.get("$match", {}).items():
            first, _, second = name.partition(".")
            events = [
                one
                for one in events
                if matches({name: one[first][second] if second else one[first]}, {name: condition})
            ]
    return events
