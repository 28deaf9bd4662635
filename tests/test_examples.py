"""The examples work when a user runs them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from examples.feeds.stage.sample_server import SampleServer

ROOT = Path(__file__).resolve().parents[1]
FEEDS = "examples/feeds/manage.py"
MARK = "STOKER_TEST_DEMO"
AT_MOST_SECONDS = 280


class Demo:
    """One run of the demo and all its processes, which carry a mark in their environment."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.mark = uuid4().hex
        self.output = folder / "demo.log"
        with self.output.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "examples.feeds.demo"],
                cwd=ROOT,
                env={**surroundings(), MARK: self.mark, "TMPDIR": str(folder), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def told(self) -> str:
        return self.output.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for the condition while the demo runs."""
        deadline = time.monotonic() + AT_MOST_SECONDS
        while not condition():
            assert self._popen.poll() is None, self.told
            assert time.monotonic() < deadline, self.told
            time.sleep(0.02)

    def until_told(self, words: str) -> None:
        self.until(lambda: words in self.told)

    def ended(self) -> int:
        """Wait for the end and return the exit code. No process may be left."""
        code = self._popen.wait(AT_MOST_SECONDS)
        assert self.processes() == {}, self.told
        return code

    def interrupt(self) -> None:
        self._popen.send_signal(signal.SIGINT)

    def processes(self) -> dict[int, str]:
        """Return process id -> command line of all processes with the mark that were not killed."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if is_dying(folder):
                    continue
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = command.decode(errors="replace")
            except OSError:  # it has just ended, or belongs to another user
                continue
        return found

    def clear(self) -> None:
        """Kill the remaining processes."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self._popen.wait()

    def kill(self, *words: str) -> None:
        """Kill the oldest process with these words in its command line."""
        found = self.processes().items()
        os.kill(min(pid for pid, line in found if all(w in line for w in words)), signal.SIGKILL)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Start demos, and kill what a failed test leaves."""
    demos: list[Demo] = []

    def start(**environment: str) -> Demo:
        demos.append(Demo(tmp_path, **environment))
        return demos[-1]

    yield start
    for demo in demos:
        demo.clear()


def test_demo_imports_feeds_and_ends(play: Callable[..., Demo]) -> None:
    """Feeds are imported, retried and dead-lettered as expected."""
    demo = play(ONCE="1")
    code = demo.ended()
    assert code == 0, demo.told
    assert "Imported 57 entries of 14 feeds." in demo.told
    assert "harbour-news.xml: 3 attempts. The server answered 500" in demo.told
    assert "closed-blog.xml: 1 attempt. The server answered 404 Not Found." in demo.told
    assert "knitting-circle.xml: 1 attempt. What is at this address is neither" in demo.told
    assert "every job is recorded once, and no entry is there twice" in demo.told
    assert re.search(r"^  harbour-news.xml +trying again ", demo.told, re.MULTILINE), demo.told


@pytest.mark.slow
def test_demo_uses_given_feeds_and_a_free_port(play: Callable[..., Demo]) -> None:
    """FEEDS names the feeds. A feed that fails gives exit code 1. A port in use is not used."""
    with SampleServer(in_haste=True) as server, socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            owner.bind(("127.0.0.1", 8000))
            owner.listen()
            is_taken = True
        except OSError:  # another process uses it, and may release it at any moment
            is_taken = False
        good, gone = server.url("tea-notes.xml"), server.url("closed-blog.xml")
        demo = play(ONCE="1", FEEDS=f"{good} {gone}")
        code = demo.ended()
    assert code == 1, demo.told
    assert "Imported 3 entries of 1 feed." in demo.told
    assert re.search(r"not as it must be:\n  127.0.0.1:\d+/closed-blog.xml was given up", demo.told)
    assert not is_taken or "on http://127.0.0.1:8000/" not in demo.told


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("are served on", marks=pytest.mark.slow),
        pytest.param("Adding", marks=pytest.mark.slow),
        pytest.param("glacier-notes.xml     import", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_leaves_no_process_and_no_folder(
    play: Callable[..., Demo], tmp_path: Path, moment: str
) -> None:
    """During start and import. Without a moment, as soon as it starts another process, which may
    end before the test sees it."""
    demo = play()
    demo.until(lambda: (moment or "are served on") in demo.told or (not moment and is_set_up(demo)))
    demo.interrupt()
    assert demo.ended() == 0, demo.told
    assert "Stopping" in demo.told
    assert not list(tmp_path.glob("stoker-demo-*"))


@pytest.mark.slow
def test_death_of_a_process_is_reported(play: Callable[..., Demo]) -> None:
    """With the end of its log. The other processes are stopped."""
    with SampleServer(in_haste=True) as server:
        demo = play(FEEDS=server.url("tea-notes.xml"))
        demo.until_told("Ctrl-C stops")
    demo.kill("stoker", "run")
    assert demo.ended() == 1, demo.told
    assert "The cluster died (SIGKILL). Its last words:" in demo.told
    assert "Cluster stoker started" in demo.told


@pytest.mark.slow
def test_demo_imports_feeds_added_later_and_shows_the_dashboard(play: Callable[..., Demo]) -> None:
    """A feed that is added on the page is imported and shown. The printed user signs in."""
    import httpx

    with SampleServer(in_haste=True) as server:
        demo = play(FEEDS=server.url("tea-notes.xml"))
        demo.until_told("Ctrl-C stops")
        page = re.findall(r"the page +(\S+)", demo.told)[0]
        with httpx.Client(trust_env=False, timeout=AT_MOST_SECONDS) as visitor:
            visitor.get(page)
            token = visitor.cookies["csrftoken"]
            form = {"url": server.url("kirchturm.xml"), "csrfmiddlewaretoken": token}
            assert visitor.post(page, data=form).is_redirect
            demo.until(lambda: re.search(r"kirchturm.xml +imported +4 entries", demo.told))
            assert "Der Kirchturm - Gemeindebrief" in visitor.get(page).text
        with httpx.Client(
            trust_env=False, timeout=AT_MOST_SECONDS, follow_redirects=True
        ) as operator:
            assert "Signed in as <b>demo</b>" in sign_in(operator, demo.told)
        demo.interrupt()
        assert demo.ended() == 0, demo.told


@pytest.mark.slow
def test_importers_own_tests_pass(tmp_path: Path) -> None:
    """The tests of the task, the page and the parts of the demo, run by `manage.py test`."""
    told = manage(tmp_path, "test", "examples.feeds")
    assert re.search(r"Ran \d\d tests", told), told
    assert "OK" in told, told


def test_importer_has_all_its_migrations(tmp_path: Path) -> None:
    assert "No changes detected" in manage(tmp_path, "makemigrations", "--check", "--dry-run")


@pytest.mark.slow
def test_two_hosts_demo_survives_a_cut_network() -> None:
    """Two clusters on two hosts: one takes over from the other, and nothing is recorded twice."""
    run = subprocess.run(
        [sys.executable, "examples/two-hosts/demo.py"],
        cwd=ROOT,
        env=surroundings() | {"TWO_HOSTS_ORDERS": "8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * AT_MOST_SECONDS,
        check=False,
    )
    told = run.stdout + run.stderr
    if run.returncode == 2:
        pytest.skip(told.strip().splitlines()[-1])
    assert run.returncode == 0, told
    assert told.count("  yes  ") == 5, told
    assert "\n  NO   " not in told, told


def sign_in(operator: Any, told: str) -> str:
    """Sign in with what the demo has printed, and return the dashboard's first page."""
    found = re.search(r"the dashboard +(\S+) \(sign in as (\w+), with the password (\S+)\)", told)
    assert found, told
    form = operator.get(found[1])
    fields = {"username": found[2], "password": found[3], "next": form.url.params["next"]}
    fields["csrfmiddlewaretoken"] = operator.cookies["csrftoken"]
    answer = operator.post(str(form.url), data=fields)
    assert str(answer.url) == found[1]
    return str(answer.text)


def is_dying(process: Path) -> bool:
    """Return whether it was killed and has not ended yet."""
    pending = re.findall(
        r"^(?:Sig|Shd)Pnd:\s*(\w+)", (process / "status").read_text(), re.MULTILINE
    )
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)


def is_set_up(demo: Demo) -> bool:
    """Return whether it has started another process."""
    return any("migrate" in line for line in demo.processes().values())


def manage(folder: Path, *arguments: str) -> str:
    """Run a command of the importer, with warnings as errors, and return its output."""
    run = subprocess.run(
        [sys.executable, "-W", "error", FEEDS, *arguments],
        cwd=ROOT,
        env=surroundings() | {"FEEDS_DATABASE": str(folder / "feeds.sqlite3")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=AT_MOST_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def surroundings() -> dict[str, str]:
    """Return the environment without variables of other tests."""
    ours = ("DJANGO_", "STOKER_", "FEEDS", "ONCE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("shop", ["Orders: 1, charges: 1.", "attempt 2 has charged."]),
        ("media", ["Metropolis is published in 6 files"]),
        ("limits", ["12 clicks on the button again.", "12 calls, at most"]),
        ("onboarding", ["Sent by 3 clusters", "welcome, first steps, how is it going?."]),
        ("tenants", ["that ran side by side: 0.", "alice got kettle, bob got teapot."]),
        ("from_celery", ["sent to alice by try 2", "paid at attempt", "total: 50"]),
        ("from_django_q", ["had left: 20.", "the group: [20, 30]", "hook got 30", "chain: [1, 2]"]),
    ],
)
def test_small_project_prints_its_expected_lines(
    name: str, lines: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.small.{name}"],
        cwd=ROOT,
        env={**surroundings(), "SMALL_DATABASE": str(tmp_path / "small.sqlite3")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in lines:
        assert line in done.stdout
    if name == "limits":  # fewer than 5 on a busy machine
        (most,) = re.findall(r"at most (\d+) of them within a second", done.stdout)
        assert int(most) <= 5
    # The cluster logs the worker that the shop kills, in one line about the attempt.
    assert done.stderr.count("stoker.jobs.record.WorkerCrashed") == (1 if name == "shop" else 0)
