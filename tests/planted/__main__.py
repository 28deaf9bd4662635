"""Plant each mistake, and run the tests that have to notice: python -m tests.planted [WORD ...]

A word chooses the mistakes whose name contains it. Ends with 1 when one was not noticed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.planted.mistakes import MISTAKES, Mistake

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1
"""Exit codes of pytest."""


def main(words: list[str]) -> int:
    chosen = [one for one in MISTAKES if not words or any(word in one.name for word in words)]
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="stoker-planted-") as folder:
        for mistake in chosen:
            code, output = run_with(mistake, Path(folder))
            print(f"{'noticed' if code == FAILED else 'NOT NOTICED'}: {mistake.name}", flush=True)
            if code != FAILED:
                unnoticed += 1
                print(output[-3000:])
    print(f"{len(chosen) - unnoticed} of {len(chosen)} mistakes are noticed")
    return 1 if unnoticed or not chosen else 0


def run_with(mistake: Mistake, folder: Path) -> tuple[int, str]:
    """Run its tests on a copy of the source that has the mistake."""
    source = folder / "src"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "stoker" / mistake.path
    text = path.read_text()
    if text.count(mistake.right) != 1:
        return -1, f"{mistake.path} has changed: it has not exactly one {mistake.right!r}"
    path.write_text(text.replace(mistake.right, mistake.wrong))
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": f"tests.settings.{mistake.database}",
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]),
        "STOKER_TEST_RUN": f"{os.environ.get('STOKER_TEST_RUN', os.getpid())}_planted",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *mistake.tests],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
