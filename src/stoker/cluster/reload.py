"""Reload code: when a file changes (``--reload``) or on SIGHUP, restart the cluster in the same
process, if the new code starts.

The new code is tried first in a separate process that does everything that ``stoker run`` does
before it runs jobs. An error is logged and the old code goes on until the next change. All of this
is polled from the sentinel's loop, without threads and without blocking.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from stoker.signals import tell

LOOK_SECONDS = 1.0
TRIAL = "STOKER_TRIAL"
"""Environment variable of a process that only tries whether the code starts."""
TRIAL_SECONDS = 120.0
SHOWN_CHARACTERS = 10_000
IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "dist-packages"}


class Reloader:
    """Decides when a cluster should restart.

    Args:
        watches_files: watch files, as with ``--reload``; else restart on request only.
    """

    def __init__(self, *, watches_files: bool) -> None:
        self.why = ""
        self.directory = working_directory()
        self._command = command_line(self.directory)
        self._files = WatchedFiles() if watches_files else None
        self._trial: Trial | None = None
        self._look_at = 0.0

    def ask(self, why: str) -> None:
        """Request a restart with the present code. It happens only if that code starts."""
        self.close()
        self.why = why
        self._trial = start_trial(self._command, self.directory)

    def has_changed(self) -> bool:
        """Return whether there is new code that starts. Polled."""
        if self._trial is not None:
            return self._trial.is_over and self._judge(self._trial)
        if self._files is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            changed = self._files.changed()
            if changed is not None:
                self.ask(f"{changed} has changed")
        return False

    def settle(self) -> None:
        """Wait for code that starts, if files changed again while the cluster stopped."""
        if self._files is None:
            return
        changed = self._files.changed()
        while changed is not None:
            trial = start_trial(self._command, self.directory)
            has_passed = trial is not None and trial.wait()
            changed = self._files.changed()
            while changed is None and not has_passed:
                time.sleep(LOOK_SECONDS / 4)
                changed = self._files.changed()

    def start_again(self) -> NoReturn:
        """Replace this process by a new one with the same id and arguments.

        SIGHUP is blocked until the new process handles it, because it would end the process. As
        process 1 of a container it would lose SIGTERM and SIGINT, so they are blocked, too; other
        processes leave them alone, because an older version of Stoker does not unblock them.

        If the working directory is a link to a release, this enters the new one. If the link is
        gone by now, the process stays in the old one.

        Raises:
            OSError: Python cannot be started.
        """
        blocked = {signal.SIGHUP}
        if os.getpid() == 1:
            blocked |= {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        command = self._command
        try:
            os.chdir(self.directory)
        except OSError as error:
            tell("reload_in_old_directory", directory=self.directory, error=error)
            command = command_line()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted

    def close(self) -> None:
        """End the running trial."""
        if self._trial is not None:
            self._trial.close()
            self._trial = None

    def _judge(self, trial: Trial) -> bool:
        self.close()
        changed = self._files.changed() if self._files is not None else None
        if changed is not None:
            self.ask(f"{changed} has changed")
            return False
        return trial.has_passed


def working_directory() -> Path:
    """Return the working directory with its symbolic links, such as ``/srv/shop/current``.

    The kernel keeps only the directory that a link led to when the process started. A shell sets
    $PWD to the path with the link.
    """
    logical = Path(os.environ.get("PWD", ""))
    with suppress(OSError):
        if logical.is_absolute() and logical.samefile(Path()):
            return logical
    return Path.cwd()


def start_trial(command: Sequence[str], directory: Path) -> Trial | None:
    """Start to try the code. If the process cannot be started, log why and return None."""
    try:
        return Trial(command, directory)
    except OSError as error:  # the directory or Python was removed, or memory is used up
        tell("reload_not_tried", error=error)
        return None


class Trial:
    """A process that starts like this one, and exits before it would run jobs.

    Args:
        command: see ``command_line``.
        directory: its working directory.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._until = time.monotonic() + TRIAL_SECONDS
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the trial
        try:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, TRIAL: "1"},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
            )
        except OSError:
            self._output.close()
            raise
        self.has_passed = False

    @property
    def is_over(self) -> bool:
        """Return whether the trial has ended or timed out."""
        return self._process.poll() is not None or time.monotonic() > self._until

    def wait(self) -> bool:
        """Wait for the end of the trial. Return whether the code starts."""
        while not self.is_over:
            time.sleep(0.02)
        self.close()
        return self.has_passed

    def close(self) -> None:
        """Store the result of the trial, and log its error."""
        is_over = self.is_over
        if self._process.poll() is None:
            self._process.kill()
        self.has_passed = self._process.wait() == 0
        if is_over and not self.has_passed:
            tell("reload_refused", error=self._error())
        self._output.close()

    def _error(self) -> str:
        if time.monotonic() > self._until:
            return f"it has not started after {TRIAL_SECONDS:.0f} s"
        self._output.seek(0)
        said = self._output.read().decode(errors="replace").strip()
        return said[-SHOWN_CHARACTERS:] or f"exit code {self._process.returncode}"


class WatchedFiles:
    """The project's files: those that Django's reloader watches, and all Python files of its
    packages, because the sentinel has loaded no tasks."""

    def __init__(self) -> None:
        from django.utils import autoreload

        import_module("django.template")  # registers the template folders with Django's reloader
        self._known_to_django = autoreload.StatReloader()
        autoreload.autoreload_started.send(sender=self._known_to_django)
        self._times: dict[Path, int] = {}
        self.changed()

    def changed(self) -> Path | None:
        """Return a file that has changed since the last call.

        A new file counts from its next change: the code that uses it must have changed as well.
        """
        found = None
        for path in self._paths():
            try:
                changed_at = path.stat().st_mtime_ns
            except OSError:  # deleted, or being replaced
                continue
            if self._times.get(path, changed_at) != changed_at:
                found = found or path
            self._times[path] = changed_at
        return found

    def _paths(self) -> Iterator[Path]:
        yield from self._known_to_django.watched_files()
        for folder in project_folders():
            yield from map(Path, _python_files(folder))


def project_folders() -> list[Path]:
    """Return the folders of the project's own packages, without installed ones and without nested
    ones."""
    from django.apps import apps

    candidates = [Path(config.path) for config in apps.get_app_configs()]
    for entry in map(Path, sys.path):
        if entry.is_dir() and not _is_installed(entry):
            candidates += [init.parent for init in entry.glob("*/__init__.py")]
    folders: list[Path] = []
    for folder in sorted({candidate.resolve() for candidate in candidates}):
        is_inside = any(outer in folder.parents for outer in folders)
        if not is_inside and not _is_installed(folder):
            folders.append(folder)
    return folders


def code_digest(beat: Callable[[], object] = lambda: None) -> str:
    """Return a digest of all Python files of the project, the same on every host.

    Args:
        beat: called for each file, because there may be many on a slow disk.
    """
    digest = hashlib.sha256()
    for folder in project_folders():
        length = len(str(folder))
        for path in sorted(_python_files(folder)):
            beat()
            digest.update(f"{folder.name}{path[length:]}\0".encode())
            # It may be deleted meanwhile.
            with suppress(OSError), open(path, "rb", buffering=0) as file:  # noqa: PTH123 - quick
                digest.update(file.read())
    return digest.hexdigest()


def _is_installed(folder: Path) -> bool:
    folder = folder.resolve()
    if IGNORED_FOLDERS.intersection(folder.parts):
        return True
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    return any(library in (folder, *folder.parents) for library in libraries)


def _python_files(folder: Path) -> Iterator[str]:
    """Yield paths as strings, because a `Path` takes longer to make than its file to read."""
    for parent, folders, names in os.walk(folder):
        folders[:] = _worth_a_look(folders)
        yield from (f"{parent}{os.sep}{name}" for name in names if name.endswith(".py"))


def _worth_a_look(folders: Iterable[str]) -> list[str]:
    return [name for name in folders if name not in IGNORED_FOLDERS and not name.startswith(".")]


def is_trial() -> bool:
    """Return whether this process is a trial, which exits before it would run jobs."""
    return TRIAL in os.environ


def command_line(directory: Path | None = None) -> list[str]:
    """Return the command that started this process: ``manage.py``, ``django-admin`` or ``-m
    django``.

    Args:
        directory: another path of the working directory, which may lead to another release later.
            If Python's executable is in the working directory, it is returned below this path.
    """
    executable = sys.executable
    if directory is not None:
        # Python adds a relative path, as in ".venv/bin/python", to the directory without links.
        with suppress(OSError, ValueError):
            executable = str(directory / Path(executable).relative_to(Path.cwd()))
    return [executable, *sys.orig_argv[1:]]
