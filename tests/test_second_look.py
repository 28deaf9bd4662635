"""Which failed tests `make test` tries again, and what becomes of them."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.summary import Result, show_summary

ROOT = Path(__file__).resolve().parents[1]
LUCK = """
from pathlib import Path

def test_luck():
    tries = Path({tries!r})
    tries.write_text(tries.read_text() + "x")
    assert len(tries.read_text()) not in {failing}
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """`scripts/test`, with a folder of this test in the place of the project's."""
    loader = importlib.machinery.SourceFileLoader("script_of_tests", str(ROOT / "scripts/test"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)  # dataclasses ask for it
    loader.exec_module(module)
    for path in ("tests/cluster", "tests/story", "reports"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr("tests.summary.ROOT", tmp_path)
    return module


@pytest.mark.parametrize(
    ("folder", "failing", "sentence", "tries"),
    [
        pytest.param("cluster", {1}, "0 failed, 1 unsure", 4, id="unlucky"),
        pytest.param("cluster", {1, 4}, "1 failed", 4, id="fails-now-and-then"),
        pytest.param("cluster", {1, 2, 3, 4}, "1 failed", 2, id="fails"),
        pytest.param("story", {1}, "1 failed", 1, id="may-have-lost-a-job"),
    ],
)
def test_what_failed_is_tried_again_where_the_machine_may_be_to_blame(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    folder: str,
    failing: set[int],
    sentence: str,
    tries: int,
) -> None:
    counter = tmp_path / "tries"
    counter.write_text("")
    text = LUCK.format(tries=str(counter), failing=failing)
    (tmp_path / f"tests/{folder}/test_of_luck.py").write_text(text)
    run, parts = script.Run([], tmp_path), [script.Part("lucky", (f"tests/{folder}",))]
    run.run_all(parts)
    run.ask_again(parts)
    show_summary(run.results, [], 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert sentence in lines[-1]
    assert any(f"tests/{folder}/test_of_luck.py::test_luck" in line for line in lines[-4:])
    assert len(counter.read_text()) == tries


def test_many_failures_are_not_bad_luck(script: ModuleType, tmp_path: Path) -> None:
    run, part = script.Run([], tmp_path), script.Part("clusters")
    failures = [(f"tests/cluster/test_{one}.py::test", "") for one in range(3)]
    run.results = [Result(part.name, failures=failures)]
    run.ask_again([part])
    assert run.results[0].failures == failures


def test_a_test_of_a_class_is_found_again(script: ModuleType, tmp_path: Path) -> None:
    text = "class TestLuck:\n    def test_luck(self): assert False\n"
    (tmp_path / "tests/cluster/test_of_luck.py").write_text(text)
    run = script.Run([], tmp_path)
    run.run_all([script.Part("unlucky", ("tests/cluster",))])
    ((name, _),) = run.results[0].failures
    assert name == "tests/cluster/test_of_luck.py::TestLuck::test_luck"
