"""Make `store.json` again with the code of an older version: `python -m tests.upgrade 96b0013`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORE = Path(__file__).with_name("store.json")
FILL = (
    "import sys, django; django.setup(); from tests.upgrade import fill; fill.main(*sys.argv[1:])"
)
OPTIONS = {"WORKERS": 2, "CONCURRENCY": 16, "HEARTBEAT_SECONDS": 0.5, "UPKEEP_SECONDS": 0.5}


def main(version: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = subprocess.run(
            ["git", "archive", version, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "-x", "-C", name], input=archive.stdout, check=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": "tests.settings.sqlite",
            "STOKER_TEST_DATABASES": json.dumps({"default": str(folder / "store.sqlite3")}),
            "STOKER_TEST_OPTIONS": json.dumps(OPTIONS),
        }
        command = [sys.executable, "-c", FILL, str(STORE), version]
        subprocess.run(command, cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
