"""The code in docs/howto/test-your-tasks.md, written to files: its tests pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, steps_of
from tests.testing.test_pytest_plugin import SETTINGS, is_registered

pytestmark = [pytest.mark.sqlite]  # the project has a database of its own

PAGE = DOCS / "howto" / "test-your-tasks.md"

FILES = {
    "settings.py": SETTINGS
    + """
INSTALLED_APPS.append("shop")
ROOT_URLCONF = "shop.urls"
""",
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models

class Order(models.Model):
    customer = models.CharField(max_length=100)
    is_paid = models.BooleanField(default=False)
""",
    "tests/__init__.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Write the project of the page, with the files that it leaves to the reader."""
    files = dict(FILES)
    for step in steps_of(PAGE):
        name, is_addition, _ = step.title.partition(" (add at the end)")
        if step.kind == "python":
            assert name, f"{PAGE.name}:{step.line} has no title"
            files[name] = f"{files[name]}\n\n{step.text}" if is_addition else step.text
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(project: Path, *command: str) -> str:
    """Run a command in the project and return its output."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(project), "DJANGO_SETTINGS_MODULE": "settings"}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", *command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.slow
def test_test_cases_of_the_page_pass(project: Path) -> None:
    printed = run(project, "django", "test", "shop")
    found = re.search(r"Ran (\d+) tests", printed)
    assert found is not None
    assert int(found[1]) == sum("    def test_" in line for line in lines_of_the_page())


def test_pytest_tests_of_the_page_pass(project: Path) -> None:
    plugin = [] if is_registered() else ["-p", "stoker.pytest_plugin"]
    printed = run(project, "pytest", "-q", "-p", "no:cacheprovider", *plugin, "tests")
    assert "2 passed" in printed


@pytest.mark.slow
def test_failure_message_is_as_shown(project: Path) -> None:
    (project / "shop" / "tests_shown.py").write_text("""
from django.test import TestCase
from shop.tasks import send_receipt
from stoker.testing import assert_enqueued

class Shown(TestCase):
    def test_shown(self):
        self.client.post("/orders/", {"customer": "alice"})
        try:
            assert_enqueued(send_receipt, args=[2])
        except AssertionError as error:
            print(error)
""")
    printed = run(project, "django", "test", "shop.tests_shown")
    (shown,) = [step.text for step in steps_of(PAGE) if step.kind == "text"]
    assert shown in printed


def lines_of_the_page() -> list[str]:
    return PAGE.read_text().splitlines()
