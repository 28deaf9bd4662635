"""Guard of the cost of a job: instructions, statements and bytes, which other load on the machine
does not change. If a change is meant to cost or save something, write the new figures, and check
them with ``git diff``:

    STOKER_GUARD=write .venv/bin/python -m pytest tests/test_benchmark_guard.py
"""

import json
import os
import sys
from pathlib import Path

import django
import pytest

from tests.app.tasks import add

FIGURES = Path(__file__).resolve().parents[1] / "benchmarks" / "instructions.json"
WRITE = "STOKER_GUARD=write, see above"
DEARER, CHEAPER = 1.05, 0.85
"""Savings must be recorded, too. Otherwise a later loss would not be noticed."""
DATABASE = os.environ.get("DJANGO_SETTINGS_MODULE", "tests.settings.sqlite").rpartition(".")[2]
MEASURED_ON = ["python 3.11", "django 5.2"]
HERE = [
    f"python {sys.version_info.major}.{sys.version_info.minor}",
    f"django {django.VERSION[0]}.{django.VERSION[1]}",
]

pytestmark = [pytest.mark.sqlite, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def test_job_costs_as_much_as_recorded() -> None:
    if HERE != MEASURED_ON:
        pytest.skip(f"the figures are of {MEASURED_ON}; others take other numbers of instructions")
    from benchmarks.instructions import count

    found = count(add, (1, 2))
    if DATABASE != "sqlite":  # how often a driver polls for an answer is random
        found = {name: value for name, value in found.items() if "instructions" not in name}
    stored = json.loads(FIGURES.read_text())
    if os.environ.get("STOKER_GUARD") == "write":
        stored[DATABASE] = found
        FIGURES.write_text(json.dumps(stored, indent=1) + "\n")
    expected = stored[DATABASE]
    assert found.keys() == expected.keys()
    told = {name: f"{expected[name]} -> {value}" for name, value in found.items()}
    dearer = [name for name in found if found[name] > expected[name] * DEARER]
    cheaper = [name for name in found if found[name] < expected[name] * CHEAPER]
    assert not dearer, (
        f"a job costs more (if it is to: {WRITE}): {[(name, told[name]) for name in dearer]}"
    )
    assert not cheaper, f"a job costs less ({WRITE}): {[(n, told[n]) for n in cheaper]}"
