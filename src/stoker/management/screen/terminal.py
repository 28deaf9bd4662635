"""A terminal as a screen: keys, size, rows. It is restored however the program ends."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from .layout import fit

ESCAPE_SECONDS = 0.05
"""How long to wait for the rest of a key's escape sequence. If none comes, the key was Escape."""
NAMES = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x1b": "escape", "\x7f": "back", "\b": "back",
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[Z": "back tab",
    "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1b[7~": "home", "\x1b[8~": "end",
}  # fmt: skip
"""Input from the terminal -> the name of the key."""
ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Another screen, no cursor, no wrapping of long lines."""
LEAVE_SCREEN = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[0m\x1b[2J"
SGR = {"": "0", "heading": "1", "dim": "2", "good": "32", "wait": "33", "bad": "31", "chosen": "7"}
"""Style -> its parameter of the escape sequence."""


class ScreenRow(NamedTuple):
    """One row of the screen."""

    text: str
    style: str = ""
    """A key of ``SGR``."""


class TerminalScreen:
    """The whole terminal, inside a ``with`` block."""

    def __init__(self, *, has_styles: bool = True) -> None:
        self._has_styles = has_styles
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._encoding = sys.stdout.encoding or "utf-8"
        self._woken, self._wake = os.pipe()
        self._shown: dict[int, ScreenRow] = {}
        self._size = (0, 0)
        self._pressed = ""

    def __enter__(self) -> TerminalScreen:
        self._handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, _end),
                (signal.SIGHUP, _end),
                (signal.SIGWINCH, lambda *_: self.wake()),
                (signal.SIGTSTP, self._suspend),
            )
        }
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, where: TracebackType | None
    ) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def wake(self) -> None:
        """Make ``keys`` return. May be called by other threads."""
        os.write(self._wake, b".")

    @property
    def size(self) -> tuple[int, int]:
        """Return the number of columns and rows."""
        columns, rows = shutil.get_terminal_size()
        return max(columns, 1), max(rows, 1)

    def keys(self) -> list[str] | None:
        """Wait for keys, a new size or ``wake``. Return the names of the keys that were pressed.
        None = the terminal was closed."""
        if not self._pressed:
            ready, _, _ = select.select([self._in, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
            if self._in in ready and not self._read():
                return None
        return [*self._names()]

    def _read(self) -> bool:
        try:
            text = os.read(self._in, 4096)
        except OSError:  # the terminal is gone
            return False
        self._pressed += text.decode("latin-1")  # all keys with a meaning are in ASCII
        return bool(text)

    def _names(self) -> Any:
        while self._pressed:
            if self._pressed == "\x1b" and select.select([self._in], [], [], ESCAPE_SECONDS)[0]:
                self._read()
            size = _length_of_key(self._pressed)
            key, self._pressed = self._pressed[:size], self._pressed[size:]
            yield NAMES.get(key, key)

    def draw(self, rows: Sequence[ScreenRow]) -> None:
        """Show the rows. Write only rows that have changed."""
        columns, lines = self.size
        parts = []
        if self._size != (columns, lines):
            self._size, self._shown = (columns, lines), {}
            parts.append(CLEAR)
        for at in range(lines):
            row = rows[at] if at < len(rows) else ScreenRow("")
            if self._shown.get(at, ScreenRow("")) != row:
                parts.append(f"\x1b[{at + 1};1H{self._painted(row, columns)}\x1b[K")
                self._shown[at] = row
        self._write("".join(parts))

    def _painted(self, row: ScreenRow, columns: int) -> str:
        text = fit(row.text, columns)
        if not (self._has_styles and row.style):
            return text
        return f"\x1b[{SGR[row.style]}m{text}\x1b[0m"

    # -- the state of the terminal ----------------------------------------------------------------

    def _take(self) -> None:
        import termios
        import tty

        self._before = termios.tcgetattr(self._in)
        tty.setcbreak(self._in)
        self._write(ENTER_SCREEN)
        self._size = (0, 0)

    def _restore(self) -> None:
        import termios

        try:
            self._write(LEAVE_SCREEN)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)
        except OSError:
            pass  # the terminal is gone

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._out, data) :]

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Leave the screen to the shell until the user continues the program (Ctrl-Z, ``fg``)."""
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self.wake()


def _end(number: int, _frame: FrameType | None) -> None:
    """Exit with the code that shells use for a signal. This raises SystemExit, so ``with`` blocks
    are left properly."""
    raise SystemExit(128 + number)


def _length_of_key(text: str) -> int:
    """Return the number of characters of the first key in the text."""
    if not text.startswith(("\x1b[", "\x1bO")):
        return 1
    for at, character in enumerate(text[2:], 3):
        if "@" <= character <= "~":
            return at
    return len(text)
