"""Tracebacks in parts: Stoker's own frames apart from the others."""

import traceback
from collections.abc import Callable

import pytest

from stoker.jobs import once
from stoker.operations.tracebacks import is_own_path, trace_parts

pytestmark = pytest.mark.unit

OWN = """\
  File "/srv/venv/lib/python3.12/site-packages/stoker/jobs/execute.py", line 10, in _try
    value = self._call(opened)
            ^^^^^^^^^^^^^^^^^^
"""
OTHER = """\
  File "/srv/shop/tasks.py", line 3, in charge
    raise ValueError("no")
"""
HEAD, END = "Traceback (most recent call last):\n", "ValueError: no\nmore: 1\n"


def shape(text: str) -> list[int]:
    return [part.own_frames for part in trace_parts(text)]


@pytest.mark.parametrize(
    ("text", "own_frames"),
    [
        (HEAD + OWN + OWN + OTHER + END, [0, 2, 0]),
        (HEAD + OWN + OTHER + OWN + OTHER + END, [0, 1, 0, 1, 0]),
        (HEAD + OTHER + END, [0]),
        (HEAD + OWN + END, [0]),
        (END, [0]),
        ("", []),
    ],
)
def test_own_frames_in_a_row_are_one_part(text: str, own_frames: list[int]) -> None:
    assert shape(text) == own_frames
    assert "".join(part.text for part in trace_parts(text)) == text


def test_cause_and_group_keep_their_lines() -> None:
    def fail() -> None:
        try:
            raise ValueError("one\n  two")  # noqa: TRY301 - as tasks do
        except ValueError as error:
            raise ExceptionGroup("both", [error, KeyError(7)]) from error

    text = formatted(fail)
    assert "".join(part.text for part in trace_parts(text)) == text
    text = text.replace(__file__, once.__file__, 1)
    assert shape(text)[:3] == [0, 1, 0]


def formatted(fail: Callable[[], None]) -> str:
    try:
        fail()
    except Exception as error:  # noqa: BLE001 - its text is wanted
        return "".join(traceback.format_exception(error))
    raise AssertionError


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("/elsewhere/site-packages/stoker/jobs/execute.py", True),
        ("C:\\venv\\Lib\\site-packages\\stoker\\jobs\\execute.py", True),
        ("/srv/stoker/shop/tasks.py", False),
        ("/srv/shop/execute.py", False),
        ("/srv/stoker/../stoker/jobs/../jobs/execute.py", False),
    ],
)
def test_files_of_stoker_are_known_wherever_it_is_installed(path: str, is_own: bool) -> None:
    assert is_own_path(path) is is_own
