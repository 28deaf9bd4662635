"""Progress bars of long commands."""

import io
import sys

import pytest

from stoker.management.bar import bar
from stoker.values.progress import come_so_far, told_to

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar("counting"):
        come_so_far(3, 7)
    assert "counting" in terminal.getvalue()
    assert "3/7" in terminal.getvalue()


def test_no_terminal_means_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("counting"):
        come_so_far(3, 7)
    assert capsys.readouterr() == ("", "")


def test_missing_rich_means_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with bar("counting"):
        come_so_far(3, 7)
    assert terminal.getvalue() == ""


def test_progress_is_reported_only_inside_the_block() -> None:
    told: list[tuple[int, int | None]] = []
    with told_to(lambda done, total: told.append((done, total))):
        come_so_far(1)
        come_so_far(2, 2)
    come_so_far(3)
    assert told == [(1, None), (2, 2)]
