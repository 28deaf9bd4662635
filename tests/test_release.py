"""`make release` in a clone of what is committed: what it writes, and when it refuses."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.sqlite


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def release(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/release", *words, "--unchecked"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(ROOT), str(folder))
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.com")
    return folder


@pytest.mark.slow
def test_dry_run_shows_the_release_and_changes_nothing(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    done = release(clone, "9.8.7", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '+version = "9.8.7"' in done.stdout
    assert re.search(r"^\+## \[9\.8\.7\] - \d{4}-\d\d-\d\d$", done.stdout, re.MULTILINE)
    assert "django_stoker-9.8.7-py3-none-any.whl" in done.stdout
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "tag", "--list", "v9*")) == (before, "")
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.slow
def test_release_commits_tags_and_leaves_the_packages(clone: Path) -> None:
    older = clone / "dist/django_stoker-9.8.6.tar.gz"
    older.parent.mkdir()
    older.touch()
    done = release(clone, "9.8.7")
    assert done.returncode == 0, done.stdout + done.stderr
    older.unlink()
    assert git(clone, "tag", "--list", "v9*") == "v9.8.7\n"
    assert git(clone, "log", "-1", "--format=%s") == "Release 9.8.7\n"
    changelog = (clone / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [9.8.7] - " in changelog
    packages = sorted(path.name for path in (clone / "dist").iterdir())
    assert packages == ["django_stoker-9.8.7-py3-none-any.whl", "django_stoker-9.8.7.tar.gz"]
    uploaded = " ".join(f"dist/{name}" for name in packages)
    assert done.stdout.endswith(f"  twine upload {uploaded}\n"), "not those of other releases"
    again = release(clone, "9.8.7")
    assert again.returncode == 1
    assert "there is a tag v9.8.7" in again.stderr
    nothing = release(clone, "9.8.8")
    assert "nothing under Unreleased" in nothing.stderr


def test_release_refuses_odd_versions_and_uncommitted_changes(clone: Path) -> None:
    assert "is no version" in release(clone, "soon").stderr
    (clone / "README.md").write_text("changed")
    assert "commit first" in release(clone, "9.8.7").stderr


def test_the_readme_lists_the_pairs_of_python_and_django_that_are_tested() -> None:
    text = (ROOT / "scripts/wheel-test").read_text()
    pairs = ast.literal_eval(re.search(r"PAIRS = (\{.*?\n\})", text, re.DOTALL)[1])  # type: ignore[index] # it is there
    readme = (ROOT / "README.md").read_text()
    djangos = re.findall(r"Django (\d\.\d) \|", readme)
    listed = {
        python: tuple(
            django for django, cell in zip(djangos, cells.split("|"), strict=False) if "yes" in cell
        )
        for python, cells in re.findall(r"^\| Python (3\.\d+) \|(.*)\|$", readme, re.MULTILINE)
    }
    assert listed == pairs


def test_ci_calls_only_targets_of_the_makefile() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    words = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {
        word
        for job in workflow["jobs"].values()
        for step in job["steps"]
        for word in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))
    }
    assert called == {"test", "test-all", "wheel-test"}
    assert called <= words
