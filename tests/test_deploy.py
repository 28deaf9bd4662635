"""The files of examples/deploy are valid, and their commands exist."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.conf import Settings
from stoker.management.commands.stoker import Command

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "deploy"
SHUTDOWN_SECONDS = Settings().shutdown_seconds


def parsed(words: list[str]) -> dict[str, Any]:
    """Parse the arguments after `manage.py stoker`. An invalid one ends the test."""
    manage = next(number for number, word in enumerate(words) if word.endswith("manage.py"))
    assert words[manage + 1] == "stoker"
    parser = Command().create_parser("manage.py", "stoker")
    return vars(parser.parse_args(words[manage + 2 :]))


def document(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.fixture
def unit() -> dict[str, str]:
    reader = configparser.ConfigParser(strict=False, interpolation=None)
    reader.optionxform = str  # type: ignore[assignment,method-assign] # as configparser has it done
    reader.read(FOLDER / "shop-cluster.service")
    return dict(reader["Service"])


def test_systemd_unit_runs_a_cluster_and_waits_for_its_stop(unit: dict[str, str]) -> None:
    assert parsed(unit["ExecStart"].split())["subcommand"] == "run"
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) > 0
    assert int(unit["TimeoutStopSec"]) >= SHUTDOWN_SECONDS + 35


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    text = (FOLDER / "shop-cluster.service").read_text()
    copy = tmp_path / "shop-cluster.service"
    copy.write_text(text.replace("/srv/shop/.venv/bin/python", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert copy.name not in done.stderr, done.stderr


def test_procfile_runs_a_cluster() -> None:
    lines = (FOLDER / "Procfile").read_text().splitlines()
    commands = dict(line.split(": ", 1) for line in lines)
    assert parsed(commands["worker"].split())["subcommand"] == "run"


def test_compose_file_runs_a_cluster_with_health_check() -> None:
    cluster = document("compose.yaml")["services"]["cluster"]
    assert parsed(cluster["command"])["subcommand"] == "run"
    assert parsed(cluster["healthcheck"]["test"][1:])["local"] is True
    assert int(cluster["stop_grace_period"].removesuffix("s")) >= SHUTDOWN_SECONDS + 35


def test_kubernetes_file_runs_clusters_with_probes() -> None:
    pod = document("kubernetes.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert parsed(container["command"])["subcommand"] == "run"
    for probe in ("livenessProbe", "startupProbe"):
        assert parsed(container[probe]["exec"]["command"])["local"] is True
    assert pod["terminationGracePeriodSeconds"] >= SHUTDOWN_SECONDS + 35
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["volumes"]}
