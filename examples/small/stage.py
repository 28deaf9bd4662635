"""A project in an empty SQLite database, for one run: settings, tables and a cluster."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
from django.core.management import call_command

ROOT = Path(__file__).resolve().parents[2]
STOKER_RUN = (sys.executable, "-m", "django", "stoker", "run", "-v", "0")


def begin(name: str, settings: str = "examples.small.settings") -> None:
    """Set up the project ``examples.small.NAME``, and create its tables.

    Args:
        settings: the module of the project's settings, if it has its own.
    """
    os.environ.setdefault("SMALL_DATABASE", str(Path(tempfile.mkdtemp(), "small.sqlite3")))
    os.environ["SMALL_APP"] = f"examples.small.{name}"
    os.environ["DJANGO_SETTINGS_MODULE"] = settings
    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


def run_cluster() -> None:
    """Run a cluster until no job is ready or running."""
    subprocess.run([*STOKER_RUN, "--drain"], cwd=ROOT, check=True)


@contextmanager
def running_cluster() -> Iterator[None]:
    """Run a cluster until the block ends."""
    cluster = subprocess.Popen(STOKER_RUN, cwd=ROOT)
    try:
        yield
    finally:
        cluster.terminate()
        cluster.wait()
