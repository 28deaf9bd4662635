"""mypy reports for example.py exactly the errors in its comments."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Types do not depend on the database.
pytestmark = [pytest.mark.sqlite, pytest.mark.slow]

EXAMPLE = Path(__file__).with_name("example.py")
ROOT = Path(__file__).resolve().parents[2]
EXPECTED = re.compile(r"# E: (.+)$")
ERROR = re.compile(r"^[^:]+example\.py:(\d+): error: (.*)$")


def expected() -> dict[int, str]:
    lines = enumerate(EXAMPLE.read_text().splitlines(), 1)
    found = ((number, EXPECTED.search(line)) for number, line in lines)
    return {number: match[1] for number, match in found if match}


def test_mypy_reports_exactly_the_expected_errors() -> None:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if match := ERROR.match(line):
            number = int(match[1])
            said[number] = said.get(number, "") + match[2]
    wanted = expected()
    surplus = {number: text for number, text in said.items() if number not in wanted}
    missing = {number: text for number, text in wanted.items() if text not in said.get(number, "")}
    assert (surplus, missing) == ({}, {}), done.stdout
    assert len(wanted) >= 25
