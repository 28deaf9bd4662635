"""Which files are watched for changes, and when a change counts."""

import os
import sys
from pathlib import Path

import pytest
from django.test import override_settings

from stoker.cluster.reload import Reloader, WatchedFiles, command_line, project_folders

pytestmark = pytest.mark.unit


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package that no app is, and things that are none of its code."""
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
    """As though it were saved a second later."""
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000_000))


def test_packages_of_the_project_are_watched_and_installed_ones_are_not(project: Path) -> None:
    folders = project_folders()
    assert project / "services" in folders
    assert Path(__file__).resolve().parents[1] in folders, "the folder of an app in INSTALLED_APPS"
    assert not [folder for folder in folders if "site-packages" in folder.parts]
    assert not [folder for folder in folders if str(folder).startswith(sys.base_prefix)]
    assert project / "data" not in folders, "it is no package"
    assert not [one for one in folders for other in folders if other in one.parents]


@pytest.mark.parametrize("name", ["services/tasks.py", "services/deep/er/more.py"])
def test_a_changed_file_counts_once(project: Path, name: str) -> None:
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
def test_what_is_no_code_of_the_project_does_not_count(project: Path, name: str) -> None:
    files = WatchedFiles()
    change(project / name)
    assert files.changed() is None


def test_a_template_counts(project: Path) -> None:
    engine = {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [project / "templates"],
    }
    with override_settings(TEMPLATES=[engine]):
        files = WatchedFiles()
        change(project / "templates/page.html")
        assert files.changed() == project / "templates/page.html"


def test_a_file_counts_from_the_change_after_it_was_first_seen(project: Path) -> None:
    files = WatchedFiles()
    new = project / "services/new.py"
    new.write_text("")
    assert files.changed() is None
    change(new)
    assert files.changed() == new


def test_a_file_that_is_replaced_counts_though_it_was_gone_for_a_moment(project: Path) -> None:
    files = WatchedFiles()
    path = project / "services/tasks.py"
    path.rename(path.with_suffix(".old"))
    assert files.changed() is None
    path.with_suffix(".old").rename(path)
    change(path)
    assert files.changed() == path


def test_without_watching_nothing_happens_unasked(project: Path) -> None:
    reloader = Reloader(watches_files=False)
    change(project / "services/tasks.py")
    assert not reloader.has_changed()
    reloader.settle()
    reloader.close()


def test_the_command_line_is_the_one_that_started_this_process() -> None:
    assert command_line() == [sys.executable, *sys.orig_argv[1:]]
