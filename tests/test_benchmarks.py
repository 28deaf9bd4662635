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


def run(*arguments: str, module: str = "benchmarks") -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks`, as `make bench` does, or another module."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STOKER_")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
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


@pytest.mark.postgres
def test_cost_of_a_job_does_not_depend_on_what_the_store_holds() -> None:
    """Counted in pages, so that the load of the machine does not matter."""
    done = run("--json", "--rounds=1", "--sizes", "100", "20000", module="benchmarks.scale")

    if "is not installed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    del found["queues"]["claim"]  # it looks into each queue
    assert {step for steps in found.values() for step in steps} == {
        "enqueue",
        "enqueue in bulk",
        "claim",
        "record",
        "fire",
    }
    grown = {
        f"{step}, {content}": cost["pages"]
        for content, steps in found.items()
        for step, cost in steps.items()
        if cost["exponent"] > 0.2
    }
    assert not grown


@pytest.mark.postgres
def test_pages_of_the_dashboard_are_measured() -> None:
    arguments = ("--jobs=2000", "--requests=1", "--only", "clusters/")
    done = run(*arguments, module="benchmarks.screens")

    if "is not installed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode in (0, 1), done.stderr[-3000:]  # 1: it took long on a busy machine
    *times, queries, kilobytes, page = done.stdout.splitlines()[1].replace("*", "").split()
    assert (page, int(queries) <= 15, float(kilobytes) <= 60) == ("clusters/", True, True)
    assert len(times) == 3


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
