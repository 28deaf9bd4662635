"""A virtual environment for each peer, made when it is first asked for.

What is installed stands in `NAME/requirements.txt`, with its versions; its first line may be
`# python 3.12`, for those that need a newer Python than Stoker does. A peer without such a file
runs in Stoker's own environment.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".bench"
INSTALL_SECONDS = 600
NEWEST = 14


class PeerUnavailableError(Exception):
    """A peer that is unavailable here. The report shows the message."""


def python_of(name: str) -> str:
    """Return the Python of a peer's environment. Create the environment first if it is missing.

    Raises:
        PeerUnavailableError: there is no such peer, or it cannot be installed.
    """
    if not (HERE / name / "peer.py").exists():
        known = ", ".join(names())
        raise PeerUnavailableError(f"there is no benchmarks/peers/{name}/peer.py (peers: {known})")
    requirements = HERE / name / "requirements.txt"
    return _python_with(name, requirements) if requirements.exists() else sys.executable


def plotting_python() -> str:
    """Return the Python that has matplotlib.

    Raises:
        PeerUnavailableError: it cannot be installed.
    """
    return _python_with("plots", HERE / "plot-requirements.txt")


def names() -> list[str]:
    """Return the names of all peers."""
    return sorted(path.parent.name for path in HERE.glob("*/peer.py"))


def _python_with(name: str, requirements: Path) -> str:
    python = FOLDER / name / "bin" / "python"
    stamp = FOLDER / name / ".stamp"
    wanted = requirements.read_text()
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open(
        "w"
    ) as lock:  # several processes of pytest may create it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            _make(name, requirements)
            stamp.write_text(wanted)
    return str(python)


def _make(name: str, requirements: Path) -> None:
    place = FOLDER / name
    shutil.rmtree(place, ignore_errors=True)
    print(f"{name}: making its environment", file=sys.stderr, flush=True)
    _run([_python_for(requirements), "-m", "venv", str(place)])
    _run([str(place / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)])


def _python_for(requirements: Path) -> str:
    found = re.match(r"# python 3\.(\d+)\n", requirements.read_text())
    if found is None:
        return sys.executable
    oldest = int(found[1])
    if sys.version_info[:2] >= (3, oldest):
        return sys.executable
    versions = [f"3.{minor}" for minor in range(oldest, NEWEST + 1)]
    done = subprocess.run(
        [str(ROOT / "scripts" / "find-python"), *versions],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PeerUnavailableError(f"it needs Python 3.{oldest} or later, and none was found")
    return done.stdout.strip()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise PeerUnavailableError("its installation took too long") from late
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
        said = (lines or done.stdout.splitlines() or ["pip failed"])[-1]
        raise PeerUnavailableError(f"it cannot be installed: {said}")
