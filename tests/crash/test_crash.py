"""A short run of the crash checker. `make soak` runs until it is stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.faults import plan
from tests.servers.private import ROOT

FAULTS = 6


@pytest.mark.chaos
@pytest.mark.slow  # it may find an unknown fault, so any change may seem to break it
@pytest.mark.sqlite
def test_short_run_finds_no_broken_promise(seed: int, tmp_path: Path) -> None:
    """It starts its own servers and ignores the database of the other tests."""
    report = tmp_path / "report"
    asked = {"BROKER": "postgres", "FAULTS": str(FAULTS), "SEED": str(seed)}
    command = [sys.executable, "-m", "tests.crash"]
    environment = os.environ | asked | {"REPORT": str(report)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if "NotInstalledError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    told = json.loads(report.read_text())
    assert told["findings"] == {}
    assert told["committed"] > 0


@pytest.mark.unit
def test_same_seed_gives_the_same_plan() -> None:
    def first(seed: int) -> list[str]:
        return [str(fault) for _, fault in zip(range(50), plan(seed, 2, True), strict=False)]

    assert first(7) == first(7)
    assert first(7) != first(8)


@pytest.mark.unit
@pytest.mark.parametrize("has_lines", [True, False])
def test_plan_has_every_kind_of_fault(has_lines: bool) -> None:
    faults = [fault for _, fault in zip(range(2000), plan(1, 2, has_lines), strict=False)]
    assert len({fault.kind for fault in faults}) == (19 if has_lines else 5)


@pytest.mark.unit
def test_every_mistake_can_be_planted(tmp_path: Path) -> None:
    """The replaced functions exist. `python -m tests.crash.planted` checks that they are found."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    crash = {"database": database, "broker": "orm://default", "options": {}, "ledger": ""}
    code = (
        "import django; django.setup()\n"
        "from tests.crash.mistakes import MISTAKES\n"
        "for one in MISTAKES.values(): one.plant()\n"
    )
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.crash.settings",
        "STOKER_CRASH": json.dumps(crash),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
