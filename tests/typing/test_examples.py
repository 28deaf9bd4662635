"""Type checkers find nothing wrong in the examples, as users would have them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Types do not depend on the database.
pytestmark = [pytest.mark.sqlite, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("examples.ini")


def test_mypy_accepts_the_examples() -> None:
    command = [sys.executable, "-m", "mypy", "--config-file", str(CONFIG), "examples"]
    # Its plugin imports the settings, and with them the app of examples/two-hosts.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples" / "two-hosts")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_the_examples() -> None:
    """It has no plug-in for Django, so attributes that Django adds to models are left to mypy.

    feedparser has no types, so the module that uses it is left out."""
    program = str(Path(sys.executable).with_name("pyright"))
    fetched = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"pyright could not be fetched from npm: {fetched.stderr.strip()[-200:]}")
    command = [program, "--project", str(CONFIG.with_name("pyrightconfig.json"))]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
