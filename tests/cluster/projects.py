"""A small project whose code a test changes while a cluster runs it."""

import os
import sys
from pathlib import Path
from typing import Any

from tests.app.tasks import version_of_changing
from tests.cluster.clusters import ROOT, SOURCE, ProcessCluster
from tests.cluster.ends import value_of

MANAGE = """\
import os
import sys

if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "project_settings"
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
"""
SETTINGS = """\
from {settings} import *

INSTALLED_APPS = [*INSTALLED_APPS, "changing"]
"""
CODE = """\
VERSION = {version!r}
"""


class Project:
    """An app `changing` on top of the tests' settings, with a version in its code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        (self.folder / "changing").mkdir(parents=True)
        (self.folder / "changing/__init__.py").touch()
        self.tasks = self.folder / "changing/tasks.py"
        self.manage = self.folder / "manage.py"
        self.manage.write_text(MANAGE)
        base = os.environ.get("DJANGO_SETTINGS_MODULE", "tests.settings.sqlite")
        (self.folder / "project_settings.py").write_text(SETTINGS.format(settings=base))
        self.write(1)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "project_settings",
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder, SOURCE, ROOT))),
        }

    @property
    def commands(self) -> dict[str, list[str]]:
        """The ways to start a command of this project."""
        return {
            "manage.py": [sys.executable, str(self.manage)],
            "-m django": [sys.executable, "-m", "django"],
            "django-admin": [str(Path(sys.executable).with_name("django-admin"))],
        }

    def write(self, version: int) -> None:
        """Change the code, and the size of its file: Python would load the compiled file of the
        version before if that had the same size and was written in the same second."""
        self._write(CODE.format(version=version) + "\n" * version)

    def spoil(self) -> None:
        """Replace the code by a syntax error."""
        self._write("VERSION = (:\n")

    def _write(self, code: str) -> None:
        """Replace the file atomically."""
        new = self.tasks.with_suffix(".new")
        new.write_text(code)
        new.replace(self.tasks)

    def version(self, cluster: ProcessCluster) -> int:
        """Return the version that a worker has loaded."""
        return int(value_of(version_of_changing.enqueue(), cluster))


class Releases:
    """Two releases of a project, each with an environment, and a link to the present one."""

    def __init__(self, folder: Path) -> None:
        self.projects = [Project(folder / str(number)) for number in (1, 2)]
        for number, project in enumerate(self.projects, 1):
            project.write(number)
            (project.folder / ".venv").symlink_to(sys.prefix)
        self.current = folder / "current"
        self.switch(self.projects[0].folder)

    def switch(self, folder: Path) -> None:
        """Let the link lead to this folder."""
        new = self.current.with_name("new")
        new.symlink_to(folder)
        new.replace(self.current)

    @property
    def options(self) -> dict[str, Any]:
        """Options of a cluster that is started in the link, with a relative interpreter."""
        return {
            "command": [
                *("sh", "-c", 'cd "$0" && exec "$@"', str(self.current)),
                *(".venv/bin/python", "manage.py"),
            ],
            "environment": {
                **self.projects[0].environment,
                "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, ROOT))),
            },
        }
