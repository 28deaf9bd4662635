"""The fixtures of the pytest plugin, in a project of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = """
import importlib.util
SECRET_KEY = "for tests only"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "stoker"]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
TASKS = {"default": {"BACKEND": "stoker.backend.StokerBackend"}}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""

TASKS = """
from stoker import task

ran = []

@task
def note(word):
    ran.append(word)
"""

TESTS = """
import pytest
from tasks import note, ran

@pytest.fixture(autouse=True)
def empty():
    ran.clear()

@pytest.mark.django_db
def test_drain(stoker_drain, stoker_enqueued):
    note.enqueue("one")
    assert [job.args for job in stoker_enqueued(note)] == [("one",)]
    stoker_drain().check()
    assert ran == ["one"]
    assert stoker_enqueued() == []

@pytest.mark.django_db
def test_inline(stoker_inline):
    note.enqueue("one")
    assert ran == ["one"]
    assert len(stoker_inline) == 1

def test_inline_before_the_database(stoker_inline, db):
    from django.db import transaction
    with transaction.atomic(savepoint=False):
        note.enqueue("one")

@pytest.mark.django_db(transaction=True)
def test_inline_with_commits(stoker_inline):
    from django.db import transaction
    with transaction.atomic():
        note.enqueue("one")
        assert ran == []
    assert ran == ["one"]

@pytest.mark.django_db
def test_no_longer_inline():
    note.enqueue("one")
    assert ran == []

def test_without_a_database(stoker_inline, stoker_drain, stoker_enqueued):
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        stoker_drain()
"""


# The project has a database of its own.
pytestmark = pytest.mark.sqlite


@pytest.mark.slow
def test_fixtures_work_in_a_project(tmp_path: Path) -> None:
    for name, text in {"settings": SETTINGS, "tasks": TASKS, "test_notes": TESTS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    if not is_registered():
        command += ["-p", "stoker.pytest_plugin"]
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    ran = subprocess.run(
        [*command, "--ds=settings", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout


def is_registered() -> bool:
    """Return whether the installed distribution registers the plugin; an old one does not."""
    from importlib.metadata import entry_points

    return bool([one for one in entry_points(group="pytest11") if one.name == "stoker"])


def test_distribution_registers_the_plugin() -> None:
    import tomllib

    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"stoker": "stoker.pytest_plugin"}


def test_plugin_does_not_import_django() -> None:
    """Pytest loads it on the whole machine, before a project's settings are known."""
    code = "import sys, stoker.pytest_plugin; print([n for n in sys.modules if 'django' in n])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
