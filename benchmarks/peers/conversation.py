"""The harness's side of the conversation with a peer's script."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks.peers.environments import HERE, ROOT
from benchmarks.processes import family

LONGEST_SECONDS = 120.0


class PeerFailedError(Exception):
    """A peer did not do what was requested."""


class Conversation:
    """One running `peer.py`, and the workers that it has started."""

    def __init__(self, name: str, python: str, folder: Path, urls: dict[str, str]) -> None:
        place, _, variant = name.partition(":")
        self._folder = folder
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {f"PEER_{kind.upper()}_URL": url for kind, url in urls.items()}
        environment |= {
            "PYTHONPATH": str(ROOT),
            "PEER_VARIANT": variant,
            "PEER_LOGS": str(folder),
            "PEER_LATENCIES": str(folder / "latencies"),
        }
        self._errors = (folder / "peer.log").open("ab")
        self._process = subprocess.Popen(
            [python, str(HERE / place / "peer.py")],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def ask(self, what: str, **details: Any) -> Any:
        """Send a request, and return the answer.

        Raises:
            PeerFailedError: it could not, or took longer than two minutes.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        guard = threading.Timer(LONGEST_SECONDS, self._process.kill)
        guard.start()
        try:
            self._process.stdin.write(json.dumps({"do": what, **details}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            guard.cancel()
        answer = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            said = answer["error"].strip()
            raise PeerFailedError(f"{what}: {said.splitlines()[-1]}\n{said}\n{self._logs()}")
        return answer["value"]

    @property
    def pid(self) -> int:
        """Id of the script's process."""
        return self._process.pid

    def workers(self) -> list[psutil.Process]:
        """Return all processes that the script has started."""
        return family(self._process.pid)[1:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the workers gracefully, then kill the remaining processes."""
        members = family(self._process.pid)
        for one in members:
            _resume(one)
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.communicate(timeout=15)  # which closes its standard input
        for one in members:
            if one.is_running():
                one.kill()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _logs(self) -> str:
        texts = {path: path.read_text(errors="replace") for path in self._folder.glob("*.log")}
        ends = [f"{path.name}: ...{text.strip()[-1500:]}" for path, text in texts.items() if text]
        return "\n".join(ends)


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()
