"""Separate processes that tests control, kill and pause.

A process that has loaded Django already forks them, so they start quickly.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

ANSWER_SECONDS = 180.0

Program = Callable[[Any, Connection], None]
"""Takes the place to work on and the connection to the test."""


class Other:
    """A process that receives the name of a method with its arguments, and answers."""

    def __init__(self, process: Any, line: Connection) -> None:
        self._process = process
        self._line = line
        assert self.hear() == "ready"

    def do(self, verb: str, **arguments: Any) -> Any:
        """Send a request and return the answer."""
        self.say(verb, **arguments)
        return self.hear()

    def say(self, verb: str, **arguments: Any) -> None:
        self._line.send((verb, arguments))

    def hear(self) -> Any:
        assert self._line.poll(ANSWER_SECONDS), "the other process says nothing"
        return self._line.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def started(program: Program, place: Any) -> Iterator[Other]:
    """Run a program in a separate process on the database of this test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.locks.preloaded"])
    ours, theirs = context.Pipe()
    process = context.Process(target=program, args=(place, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Other(process, ours)
    finally:
        process.kill()
        process.join()
        ours.close()
