"""A project in an empty SQLite database, for one run: settings, tables and a cluster."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import django
from django.core.management import call_command

ROOT = Path(__file__).resolve().parents[2]


def begin(name: str) -> None:
    """Set up the project ``examples.small.NAME``, and make its tables."""
    os.environ.setdefault("SMALL_DATABASE", str(Path(tempfile.mkdtemp(), "small.sqlite3")))
    os.environ["SMALL_APP"] = f"examples.small.{name}"
    os.environ["DJANGO_SETTINGS_MODULE"] = "examples.small.settings"
    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


def run_cluster() -> None:
    """Run a cluster until no job is ready or running."""
    command = [sys.executable, "-m", "django", "stoker", "run", "--drain", "-v", "0"]
    subprocess.run(command, cwd=ROOT, check=True)
