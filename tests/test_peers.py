"""The benchmark with other queues: the form of its output, not the speed."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as harness
from benchmarks.peers import conversation, environments
from benchmarks.peers.page import cost, speed, terms
from benchmarks.peers.report import ROWS, numbers, ratios, report, spread
from benchmarks.peers.rounds import Load

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.slow]

TOY = """
from benchmarks.peers import side

class Toy(side.Peer):
    servers = ()
    title, settings, delivery, concurrency, results = "a toy", "none", "none", "none", "none"
    ran = 0

    def enqueue(self, task, number):
        {fault}
        getattr(side, task)(number)
        self.ran += 1

    def enqueue_many(self, count):
        for number in range(count):
            self.enqueue(side.NOTHING, number)

    def commands(self):
        return [[side.sys.executable, "-c", "import time; time.sleep(600)"]]

    def is_settled(self, count):
        return self.ran == count

    def finished(self):
        return self.ran {loss}

side.serve(Toy)
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of peers that need no server: one that works, and two that fail."""
    for name, fault, loss in [
        ("works", "pass", ""),
        ("breaks", 'raise ValueError("no more")', ""),
        ("loses", "pass", "- 1"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "peer.py").write_text(TOY.format(fault=fault, loss=loss))
    monkeypatch.setattr(conversation, "HERE", tmp_path)
    monkeypatch.setattr(environments, "HERE", tmp_path)
    return tmp_path


@pytest.mark.sqlite
@pytest.mark.usefixtures("toys")
def test_failing_peer_does_not_stop_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = harness.Run(Load(jobs=20, seconds=1.0, samples=2), rounds=2, seconds=600)
    with ExitStack() as stack:
        run.introduce(["breaks", "loses", "missing", "works"], stack)
        turns = list(run.turns())

    assert turns == ["breaks", "loses", "works"] * 2
    peers = run.measured["peers"]
    assert [one["jobs"] for one in peers["works"]["rounds"]] == [20, 20]
    assert not peers["breaks"]["rounds"]
    text = report(run.measured | {"bases": ("works", "works")})
    assert "missing: there is no benchmarks/peers/missing/peer.py" in text
    assert "breaks, round 1: enqueue_singly: ValueError: no more" in text
    assert "loses, round 2: 44 of 45 jobs have ended well" in text
    assert "going on without it" in capsys.readouterr().err


@pytest.mark.sqlite
@pytest.mark.usefixtures("toys")
def test_no_peer_starts_after_the_time_limit() -> None:
    run = harness.Run(Load(jobs=20, seconds=1.0, samples=2), rounds=2, seconds=0)
    with ExitStack() as stack:
        run.introduce(["works"], stack)

        assert list(run.turns()) == []


@pytest.mark.sqlite
def test_ratios_compare_equal_rounds() -> None:
    measured = {
        "peers": {
            "fast": peer("Fast", {1: 100.0, 2: 400.0, 3: 10.0}),
            "slow": peer("Slow", {1: 50.0, 2: 100.0}),
        }
    }

    assert ratios(measured, "slow", "fast") == [0.5, 0.25]
    assert ratios(measured, "fast", "slow") == [2.0, 4.0]
    assert ratios(measured, "fast", "absent") == []
    assert spread([3.0, 1.0, 2.0], 1) == "2.0 (1.0-3.0)"


@pytest.mark.sqlite
def test_costs_are_per_job() -> None:
    rounds = peer("Any", {1: 100.0})["rounds"]
    found = {row.name: numbers(rounds, row) for row in ROWS}

    assert found["workers_us"] == [pytest.approx(2_000.0)]
    assert found["servers_us"] == [pytest.approx(1_000.0)]
    assert found["p50"] == [pytest.approx(2.5)]
    assert found["commits"] == [0.5]
    assert found["dead"] == [7.0]
    assert found["aof"] == []


@pytest.mark.sqlite
def test_page_shows_the_speed_relative_to_stoker() -> None:
    measured = {
        "bases": ["stoker", "raw"],
        "peers": {
            "slow": peer("Slow", {1: 50.0}),
            "raw": peer("By hand", {1: 200.0}),
            "stoker": peer("Stoker", {1: 100.0}),
        },
    }
    rows = {row[0]: row for row in speed(measured)}

    assert list(rows) == ["", "By hand", "Stoker", "Slow"]
    assert rows["Slow"][3:5] == ["0.250", "2.00 (2.00-2.00)"]
    assert rows["Stoker"][3:5] == ["0.500", "-"]
    assert "AOF bytes per job" not in cost(measured)[0]
    assert all(len(row) == len(terms(measured)[0]) for row in terms(measured))


@pytest.mark.postgres
def test_small_run_measures_stoker_and_the_manual_loop(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    options = ["--jobs=60", "--rounds=1", "--samples=3", f"--json={file}"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *options],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("STOKER_")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    if "is not installed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(file.read_text())
    for name in ("stoker", "raw"):
        (once,) = measured["peers"][name]["rounds"]
        assert once["jobs"] == 60
        assert len(once["latencies_ms"]) == 3
        assert once["processor"]["workers"] > 0
        assert once["counters"]["WAL bytes"] > 0
    assert "to Stoker" in done.stdout


def peer(title: str, rates: dict[int, float]) -> dict[str, Any]:
    """Return a peer whose rounds differ only in their rates."""
    about = dict.fromkeys(
        ("version", "python", "settings", "delivery", "concurrency", "results"), "any"
    )
    once = {
        "jobs": 1_000,
        "enqueue_singly": 10.0,
        "enqueue_in_bulk": 20.0,
        "processor": {"workers": 2.0, "servers": 1.0},
        "counters": {"commits": 0.5, "WAL bytes": 100.0},
        "left": {"dead rows": 7.0},
        "latencies_ms": [1.0, 2.0, 3.0, 4.0],
        "memory_mb": 30.0,
        "idle_percent": 0.5,
    }
    rounds = [{**once, "round": number, "drain": rate} for number, rate in rates.items()]
    return {"about": {**about, "title": title}, "rounds": rounds, "failures": []}
