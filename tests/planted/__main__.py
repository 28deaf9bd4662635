"""Plant each mistake, and run the tests that must notice it: python -m tests.planted [WORD ...]

Without a word: mistakes that are noticed without a cluster; `some`: a random dozen of those; `all`:
every mistake; another word: mistakes whose names contain it. Exits with 1 if one was not noticed.
"""

import importlib
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.planted.mistake import Mistake
from tests.planted.mistakes import MISTAKES
from tests.planted.operations import Misfit

ROOT = Path(__file__).resolve().parents[2]
SOME = 12
WAIT_SECONDS = 30
"""How long a test waits for an event that a mistake may prevent."""
FAILED, NO_TESTS = 1, 5
"""Exit codes of pytest."""

# Each run of pytest is forked from this process, which has these modules imported already. They
# must not be ours, because ours come from the copy.
LOADED_ONCE = (
    "asgiref.sync",
    "django.contrib.auth.hashers",
    "django.core.management",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.db.migrations",
    "django.db.models",
    "django.test.utils",
    "django.test",
    "django.urls",
    "django_tasks",
    "hypothesis.stateful",
    "pytest_django.plugin",
    "pytest_timeout",
    "xdist.plugin",
)


def main(words: list[str]) -> int:
    is_sample = words == ["some"]
    chosen = [one for one in MISTAKES if _is_chosen(one, [] if is_sample else words)]
    if is_sample:
        chosen = random.SystemRandom().sample(chosen, min(SOME, len(chosen)))
    unnoticed = 0
    for name in LOADED_ONCE:
        with suppress(ImportError):
            importlib.import_module(name)
    assert "stoker" not in sys.modules
    with tempfile.TemporaryDirectory(prefix="stoker-planted-") as name:
        folder = Path(name)
        # With compiled files, and with the times by which they are known to fit the source.
        shutil.copytree(ROOT / "src", folder / "src")
        for mistake in chosen:
            began = os.times()
            code, output = _run_with(mistake, folder)
            ended = os.times()
            seconds = ended.children_user + ended.children_system
            seconds -= began.children_user + began.children_system
            said = "noticed" if code == FAILED else "NOT NOTICED"
            print(f"{said}: {mistake.name} ({seconds:.1f} s)", flush=True)
            if code != FAILED:
                unnoticed += 1
                print(output[-3000:])
    print(f"{len(chosen) - unnoticed} of {len(chosen)} mistakes are noticed")
    return 1 if unnoticed or not chosen else 0


def _is_chosen(mistake: Mistake, words: list[str]) -> bool:
    if mistake.needs_redis and not os.environ.get("STOKER_TEST_REDIS_URL"):
        return False  # its tests would be skipped, which the run of the tests reports
    if mistake.database == "mariadb" and not os.environ.get("STOKER_TEST_MARIADB_URL"):
        return False
    if not words:
        return not mistake.needs_cluster
    return words == ["all"] or any(word in mistake.name for word in words)


def _run_with(mistake: Mistake, folder: Path) -> tuple[int, str]:
    """Run the mistake's tests on the copy of the source with the mistake."""
    source = folder / "src" / "stoker"
    with ExitStack() as stack:
        try:
            for change in mistake.changes:
                stack.enter_context(_written(*change.made_in(source)))
        except Misfit as misfit:
            return NO_TESTS, str(misfit)
        return _run_tests(mistake, folder)


def _run_tests(mistake: Mistake, folder: Path) -> tuple[int, str]:
    output = folder / "output"
    with output.open("wb") as file:
        pid = os.fork()
        if pid == 0:
            code = NO_TESTS
            try:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                code = _become_pytest(mistake, str(folder / "src"))
            except BaseException:  # noqa: BLE001 - this fork must not go on as its parent
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), output.read_text(errors="replace")


def _become_pytest(mistake: Mistake, source: str) -> int:
    os.chdir(ROOT)
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": f"tests.settings.{mistake.database}",
        "PYTHONPATH": os.pathsep.join([source, str(ROOT)]),
        "STOKER_TEST_RUN": f"{os.environ.get('STOKER_TEST_RUN', os.getpid())}_planted",
        "PYTHONDONTWRITEBYTECODE": "1",
        "STOKER_TEST_WAIT_SECONDS": str(WAIT_SECONDS),
    }
    sys.dont_write_bytecode = True
    sys.path.insert(0, source)
    loaded_early = "ignore::pytest.PytestAssertRewriteWarning"
    command = ["-q", "-x", "-p", "no:cacheprovider", "-W", loaded_early]
    words = ["-k", mistake.words] if mistake.words else []
    return int(pytest.main([*command, mistake.tests, *words]))


@contextmanager
def _written(path: Path, text: str) -> Iterator[None]:
    before, moment = path.read_text(), path.stat()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)
        os.utime(path, ns=(moment.st_atime_ns, moment.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
