"""The benchmarks run with a few jobs: the form of their output, not the speed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
POSITIVE = ("drain", "enqueue_singly", "enqueue_in_transaction", "enqueue_in_bulk", "memory_mb")

pytestmark = [pytest.mark.slow]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks`, as `make bench` does."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STOKER_")}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("sqlite", marks=pytest.mark.sqlite),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ],
)
def test_small_run_measures_everything(database: str) -> None:
    done = run("--jobs=50", "--rounds=1", f"--databases={database}", "--json")

    if "is not installed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout)["databases"][database]
    assert measured["locked"] == 0
    (once,) = measured["rounds"]
    for side in (once["stoker"], once["hand"]):
        assert all(side[name] > 0 for name in POSITIVE), side
        assert side["latencies_ms"]
        assert min(side["latencies_ms"]) > 0


@pytest.mark.sqlite
def test_table_has_a_ratio_in_each_row() -> None:
    from benchmarks.report import ROWS, table

    side = {
        "drain": 100.0,
        "processor": {"stoker-worker": 0.5},
        "enqueue_singly": 1.0,
        "enqueue_in_transaction": 1.0,
        "enqueue_in_bulk": 1.0,
        "latencies_ms": [1.0, 2.0],
        "memory_mb": 100.0,
        "idle_percent": 1.0,
    }
    rounds = [{"stoker": side, "hand": {**side, "drain": 200.0}}] * 3
    text = table({"database": "SQLite", "locked": 0, "rounds": rounds}, jobs=10)

    lines = text.splitlines()
    assert next(line for line in lines if line.startswith(ROWS[0].title)).endswith(" 0.50")
    assert len([line for line in lines if line.endswith(" 1.00")]) == len(ROWS) - 1


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("argument", "says"),
    [("--databases=oracle", "some of postgres, sqlite, mariadb"), ("--jobs=0", "above 0")],
)
def test_wrong_option_is_refused_with_a_message(argument: str, says: str) -> None:
    done = run(argument)

    assert done.returncode == 2
    assert says in done.stderr
