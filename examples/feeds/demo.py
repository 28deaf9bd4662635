"""Import feeds with a real web server and a real cluster: ``python -m examples.feeds.demo``.

With ONCE=1 it ends when all feeds are imported, with exit code 0 if the results are right and 1
otherwise. FEEDS="url url" imports these feeds instead of the samples.
"""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory

import django

from .stage.processes import Interruption


def main() -> int:
    interruption = Interruption()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # whatever letters the terminal lacks
    with TemporaryDirectory(prefix="stoker-demo-", ignore_cleanup_errors=True) as folder:
        # For this process and those that it starts.
        os.environ["DJANGO_SETTINGS_MODULE"] = "examples.feeds.settings"
        os.environ["FEEDS_DATABASE"] = str(Path(folder, "feeds.sqlite3"))
        django.setup()

        from .stage.play import Play

        play = Play(Path(folder), interruption, feeds=os.environ.get("FEEDS", "").split())
        return play.perform(is_once=os.environ.get("ONCE", "") not in ("", "0"))


if __name__ == "__main__":
    sys.exit(main())
