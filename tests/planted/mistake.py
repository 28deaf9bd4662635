"""What a planted mistake is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.planted.operations import Misfit, Operation, check, plant


@dataclass(frozen=True)
class Change:
    """An operation on one function."""

    place: str
    """Module, below `stoker`, and qualified name: `schedules.fire:Firing._fire`."""
    operation: Operation

    def made_in(self, source: Path) -> tuple[Path, str]:
        """Return the file and what it holds with the mistake.

        Raises:
            Misfit: it cannot be made in this source.
        """
        return plant(source, self.place, self.operation)

    def check(self, source: Path) -> None:
        """Raise Misfit if it cannot be made in this source."""
        check(source, self.place, self.operation)


@dataclass(frozen=True)
class Text:
    """Other text in a file that is not Python: SQL, Lua, a template."""

    path: str
    right: str
    wrong: str
    times: int = 1
    """How often the text occurs."""

    def made_in(self, source: Path) -> tuple[Path, str]:
        """Return the file and what it holds with the mistake.

        Raises:
            Misfit: it cannot be made in this source.
        """
        path = source / self.path
        text = path.read_text()
        if text.count(self.right) != self.times:
            raise Misfit(f"{self.path} has changed: not {self.times} x {self.right!r}")
        return path, text.replace(self.right, self.wrong)

    def check(self, source: Path) -> None:
        """Raise Misfit if it cannot be made in this source."""
        self.made_in(source)


@dataclass(frozen=True)
class Mistake:
    """A plausible mistake, and the smallest selection of tests that detects it."""

    name: str
    changes: Sequence[Change | Text]
    """Several if each place alone makes up for the other."""
    tests: str
    """A module."""
    words: str = ""
    """The value of pytest's option -k. Empty: every test of the module."""
    database: str = "sqlite"
    needs_cluster: bool = False
    """The tests start a cluster, which takes time."""
    needs_redis: bool = False
