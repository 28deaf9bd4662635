"""Follows a page in an empty folder, with two terminals, as a reader would."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from .pages import Step, commands_of, matches, steps_of

APPEAR_SECONDS = 180.0
"""A guard, in place of the shorter ones that the page has for its readers."""
HAS_DJANGO_6 = importlib.util.find_spec("django.tasks") is not None

SHELL = """
import doctest, io, json, sys
names, told = {}, sys.stdout
for line in sys.stdin:
    block = json.loads(line)
    test = doctest.DocTestParser().get_doctest(block["text"], names, block["name"], "", 0)
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(test, out=report.write, clear_globs=False)
    names = test.globs
    told.write(json.dumps({"failed": runner.failures, "report": report.getvalue()}) + "\\n")
    told.flush()
"""
"""Code for `manage.py shell`, in place of reading from a terminal."""


class Walk:
    """Does what a page says, as a reader would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.second_log = folder / "second-terminal.log"
        self.second: subprocess.Popen[bytes] | None = None
        self.seen = 0
        self.shell: subprocess.Popen[str] | None = None
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DJANGO_", "STOKER_", "PYTHON", "COV_"))
        }
        programs = Path(sys.executable).parent
        path = f"{programs}{os.pathsep}{clean.get('PATH', '')}"
        self.environment = {**clean, "PATH": path, "COLUMNS": "100", "TERM": "dumb"}

    def follow(self, page: Path) -> None:
        for step in steps_of(page):
            if step.is_run:
                try:
                    self._do(step)
                except AssertionError as error:
                    raise AssertionError(f"{page.name}:{step.line}: {error}") from None

    def _do(self, step: Step) -> None:
        if step.kind == "python":
            self._write(step)
        elif step.kind == "pycon":
            self._ask_shell(step)
        elif step.title == "second terminal":
            self._in_second_terminal(step.text)
        elif step.kind == "console":
            for command, wanted in commands_of(step.text):
                self._command(command, wanted)

    def _write(self, step: Step) -> None:
        name, _, how = step.title.partition(" (")
        assert name, "a block without the name of its file"
        if how == "add at the end, on Django 5.2)" and HAS_DJANGO_6:
            return
        path = self.folder / name
        before = path.read_text() + "\n" if how.startswith("add at the end") else ""
        path.parent.mkdir(exist_ok=True)
        path.write_text(before + step.text)

    def _command(self, command: str, wanted: str) -> None:
        if command == "python manage.py shell":
            self._close_shell()
            self.shell = subprocess.Popen(
                [*shlex.split(command), "-c", SHELL],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            return
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=APPEAR_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"`{command}` failed:\n{done.stdout}\n{self._log()}"
        if wanted:
            assert matches(wanted, done.stdout), f"`{command}` printed\n{done.stdout}"

    def _ask_shell(self, step: Step) -> None:
        assert self.shell is not None, "there is no shell open"
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        text = step.text.replace(">>> exit()\n", "")
        patient = re.sub(r"\bwait\(timeout=\d+\)", f"wait(timeout={APPEAR_SECONDS})", text)
        self.shell.stdin.write(json.dumps({"text": patient, "name": f"line {step.line}"}) + "\n")
        self.shell.stdin.flush()
        while (line := self.shell.stdout.readline()) and not line.startswith('{"failed"'):
            continue  # Django 5.2 and later print first what they have imported
        assert line, f"the shell ended\n{self._log()}"
        answer = json.loads(line)
        assert not answer["failed"], f"{answer['report']}\n{self._log()}"
        if text != step.text:
            self._close_shell()

    def _in_second_terminal(self, text: str) -> None:
        command, _, wanted = text.partition("\n")
        if command == "^C":
            assert self.second is not None
            os.killpg(self.second.pid, signal.SIGINT)
        else:
            with self.second_log.open("wb") as log:
                self.second = subprocess.Popen(
                    shlex.split(command.removeprefix("$ ")),
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        self._wait_for(wanted)
        if command == "^C":
            assert self.second is not None
            assert self.second.wait(APPEAR_SECONDS) == 0, f"not a clean end:\n{self._log()}"

    def _wait_for(self, wanted: str) -> None:
        until = time.monotonic() + APPEAR_SECONDS
        while not matches(f"...{wanted}...", self._log()[self.seen :] + "\n"):
            assert time.monotonic() < until, f"{wanted!r} does not appear in\n{self._log()}"
            time.sleep(0.05)
        self.seen = len(self._log())

    def _log(self) -> str:
        return self.second_log.read_text(errors="replace") if self.second_log.exists() else ""

    def _close_shell(self) -> None:
        if self.shell is not None:
            assert self.shell.stdin is not None
            self.shell.stdin.close()
            self.shell.wait(APPEAR_SECONDS)
            if self.shell.stdout is not None:
                self.shell.stdout.close()
            self.shell = None

    def close(self) -> None:
        """End all processes."""
        self._close_shell()
        if self.second is not None and self.second.poll() is None:
            self.second.kill()  # the kernel or closed sockets end the others
            self.second.wait()
