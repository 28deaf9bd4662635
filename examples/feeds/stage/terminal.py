"""Progress on a terminal, one line per feed, or as plain lines without a terminal."""

import os
import shutil
import sys

COLOURS = {"imported": "32", "trying again": "33", "given up": "31"}


class Progress:
    """Lines that change in place. Without a terminal, each change is a new line."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_coloured = self._is_terminal and "NO_COLOR" not in os.environ
        self._is_in_place = self._is_terminal
        self._height = 0
        self._shown: dict[str, tuple[str, str]] = {}

    def show(self, rows: dict[str, tuple[str, str]]) -> None:
        """Show the current rows: name -> (word, detail)."""
        changed = {name: row for name, row in rows.items() if self._shown.get(name) != row}
        if not changed:
            return
        self._shown = dict(rows)
        columns, lines = shutil.get_terminal_size()
        # Lines that have scrolled out of the screen cannot be changed.
        self._is_in_place = self._is_in_place and len(rows) < lines
        if self._is_in_place:
            print(f"\x1b[{self._height}F" if self._height else "", end="")
            changed, self._height = rows, len(rows)
        width = min(48, max([20, *map(len, rows)]))
        for name, (word, detail) in changed.items():
            line = f"  {name[:width]:{width}}  {word:12}  {detail}".rstrip()
            print(self._fitted(line, word, columns))
        sys.stdout.flush()

    def begin_below(self) -> None:
        """Start below other output, because lines above it cannot be changed."""
        self._height = 0

    def leave(self) -> None:
        """Keep the shown lines, and show only later changes below them."""
        self._is_in_place = False

    def _fitted(self, line: str, word: str, columns: int) -> str:
        if not self._is_terminal:
            return line
        line = line[: columns - 1] + "\x1b[K"
        if self._is_coloured and word in COLOURS:
            line = line.replace(f"  {word}", f"  \x1b[{COLOURS[word]}m{word}\x1b[0m", 1)
        return line
