"""The files that are watched for changes, and when a change is reported."""

import os
import sys
from pathlib import Path

import pytest
from django.test import override_settings

from stoker.cluster.reload import Reloader, WatchedFiles, code_digest, command_line, project_folders

pytestmark = pytest.mark.unit


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package that is no app, and with files that are not its code."""
    for name in (
        "services/__init__.py",
        "services/tasks.py",
        "services/deep/er/more.py",
        "services/node_modules/package/tool.py",
        "services/.hidden/secret.py",
        "services/notes.txt",
        "data/loose.py",
        "lib/python3/site-packages/installed/__init__.py",
        "templates/page.html",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "lib/python3/site-packages")
    return tmp_path


def change(path: Path) -> None:
    """Change a file's time as if it was saved a second later."""
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000_000))


def test_only_packages_of_the_project_are_watched(project: Path) -> None:
    folders = project_folders()
    assert project / "services" in folders
    assert Path(__file__).resolve().parents[1] in folders, "the folder of an app in INSTALLED_APPS"
    assert not [folder for folder in folders if "site-packages" in folder.parts]
    assert not [folder for folder in folders if str(folder).startswith(sys.base_prefix)]
    assert project / "data" not in folders, "it is no package"
    assert not [one for one in folders for other in folders if other in one.parents]


def test_digest_changes_only_with_the_code_of_the_project(project: Path) -> None:
    before = code_digest()
    change(project / "services/tasks.py")
    (project / "services/notes.txt").write_text("not code")
    (project / "data/loose.py").write_text("not in a package")
    assert code_digest() == before
    (project / "services/tasks.py").write_text("tasks = 1")
    assert code_digest() != before
    (project / "services/tasks.py").write_text("")
    assert code_digest() == before
    (project / "services/tasks.py").rename(project / "services/jobs.py")
    assert code_digest() != before


def test_trial_that_cannot_be_started_refuses_the_reload(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, because the virtual environment of the running code was removed."""
    monkeypatch.setattr(sys, "executable", "/removed/bin/python")
    reloader = Reloader(watches_files=False)
    reloader.ask("asked by SIGHUP")
    assert not reloader.has_changed()
    assert "/removed/bin/python" in caplog.text
    assert "The new code could not be tried, so the old code keeps running" in caplog.text
    reloader.close()


@pytest.mark.parametrize("name", ["services/tasks.py", "services/deep/er/more.py"])
def test_changed_file_is_reported_once(project: Path, name: str) -> None:
    files = WatchedFiles()
    assert files.changed() is None
    change(project / name)
    assert files.changed() == project / name
    assert files.changed() is None


@pytest.mark.parametrize(
    "name",
    [
        "services/notes.txt",
        "services/node_modules/package/tool.py",
        "services/.hidden/secret.py",
        "data/loose.py",
    ],
)
def test_other_files_are_not_watched(project: Path, name: str) -> None:
    files = WatchedFiles()
    change(project / name)
    assert files.changed() is None


def test_changed_template_is_reported(project: Path) -> None:
    engine = {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [project / "templates"],
    }
    with override_settings(TEMPLATES=[engine]):
        files = WatchedFiles()
        change(project / "templates/page.html")
        assert files.changed() == project / "templates/page.html"


def test_new_file_is_reported_after_its_next_change(project: Path) -> None:
    files = WatchedFiles()
    new = project / "services/new.py"
    new.write_text("")
    assert files.changed() is None
    change(new)
    assert files.changed() == new


def test_replaced_file_is_reported(project: Path) -> None:
    files = WatchedFiles()
    path = project / "services/tasks.py"
    path.rename(path.with_suffix(".old"))
    assert files.changed() is None
    path.with_suffix(".old").rename(path)
    change(path)
    assert files.changed() == path


def test_reloader_without_watching_reports_no_change(project: Path) -> None:
    reloader = Reloader(watches_files=False)
    change(project / "services/tasks.py")
    assert not reloader.has_changed()
    reloader.settle()
    reloader.close()


def test_command_line_is_that_of_this_process() -> None:
    assert command_line() == [sys.executable, *sys.orig_argv[1:]]


def test_command_line_names_an_interpreter_of_the_working_directory_by_its_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "current").symlink_to(tmp_path / "release")
    monkeypatch.chdir(tmp_path / "release")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "release/.venv/bin/python"))
    assert command_line(tmp_path / "current")[0] == str(tmp_path / "current/.venv/bin/python")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python")
    assert command_line(tmp_path / "current")[0] == "/usr/bin/python"
