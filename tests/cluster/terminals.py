"""A pseudo-terminal with a program in it, and the text on its screen."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.cluster.clusters import ROOT, environment_of_commands, wait_for

SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b([^\[])", re.DOTALL)


class TerminalModel:
    """The screen of a terminal that knows a few escape sequences, and refuses others."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.modes: set[str] = set()
        self.styles: set[str] = set()
        self.row = self.column = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def write(self, text: str) -> str:
        """Show a text. Return its end, if that is an incomplete sequence."""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = SEQUENCE.match(text, at)
                if match is None:
                    return text[at:]
                self._obey(match)
                at = match.end()
            else:
                self._put(text[at])
                at += 1
        return ""

    def _obey(self, match: re.Match[str]) -> None:
        parameters, name = match[1] or "", match[2]
        if name == "H":
            row, _, column = parameters.partition(";")
            self.row, self.column = int(row or 1) - 1, int(column or 1) - 1
        elif name == "J":
            self.cells = [[" "] * self.columns for _ in range(self.rows)]
        elif name == "K":
            rest = self.columns - self.column
            if rest > 0:
                self.cells[self.row][self.column :] = [" "] * rest
        elif name in ("h", "l"):
            (self.modes.add if name == "h" else self.modes.discard)(parameters)
        elif name == "m":
            self.styles.add(parameters)
        else:
            raise AssertionError(f"unknown sequence {match[0]!r}")

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row = min(self.row + 1, self.rows - 1)
        else:
            assert character.isprintable(), f"raw {character!r} on the screen"
            assert self.column < self.columns, f"row {self.row + 1} is too long: {self.text}"
            self.cells[self.row][self.column] = character
            self.column += 1


class TerminalProgram:
    """A program in a pseudo-terminal."""

    def __init__(self, command: Sequence[str], columns: int, rows: int, **environment: str) -> None:
        self._ours, self.theirs = pty.openpty()
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.screen = TerminalModel(columns, rows)
        self._set_size(columns, rows)
        self.before = termios.tcgetattr(self.theirs)
        variables = environment_of_commands({"TERM": "xterm", **environment})
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            if name not in environment:
                variables.pop(name, None)
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=variables,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            preexec_fn=self._control,  # noqa: PLW1509 - one call, and no other threads use it
        )

    def _control(self) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSCTTY, 0)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self.screen = TerminalModel(columns, rows)
        self._set_size(columns, rows)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def hear(self) -> None:
        """Show what the program has written."""
        while select.select([self._ours], [], [], 0.05)[0]:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                return
            self._rest = self.screen.write(self._rest + self._decoder.decode(data))

    def wait_for(self, *texts: str, without: str = "\0") -> list[str]:
        """Wait until the screen shows all these texts, and not the other one. Return its lines."""

        def is_shown() -> bool:
            self.hear()
            return (
                all(text in self.screen.text for text in texts) and without not in self.screen.text
            )

        wait_for(is_shown, lambda: self.screen.text)
        return self.screen.lines

    def wait_for_end(self) -> int:
        def has_ended() -> bool:
            self.hear()
            return self.process.poll() is not None

        wait_for(has_ended, lambda: self.screen.text)
        self.hear()
        return self.process.returncode

    def is_restored(self) -> bool:
        """Return whether the terminal is as it was before the program started."""
        kept = self.screen.modes & {"?1049"}
        return not kept and termios.tcgetattr(self.theirs) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.theirs)
        os.close(self._ours)


@contextmanager
def terminal_program(
    command: Sequence[str], columns: int = 80, rows: int = 24, **environment: str
) -> Iterator[TerminalProgram]:
    program = TerminalProgram(command, columns, rows, **environment)
    try:
        yield program
    finally:
        program.close()
