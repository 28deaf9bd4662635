"""`stoker monitor` on a terminal and as text, and `stoker memory`."""

import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from django.db import DEFAULT_DB_ALIAS, connection
from django.utils import timezone

from stoker import queues
from stoker.conf import settings_for
from stoker.models import Cluster
from stoker.store.written import DatabaseNow, microseconds

from tests.app import tasks
from tests.app.tasks import nothing, sleep
from tests.cluster.clusters import DJANGO, run_command, running_cluster, wait_for
from tests.cluster.terminals import TerminalProgram, terminal_program
from tests.integration.work import claim, work_off
from tests.tables import empty_tables

pytestmark = pytest.mark.usefixtures("db")

HOSTILE = "\x1b[2J\u202eno stamp\x9b31m\r"
UP, DOWN, PAGE_DOWN, END, ESCAPE, ENTER, CTRL_C = (
    "\x1b[A", "\x1b[B", "\x1b[6~", "\x1b[F", "\x1b", "\r", "\x03"
)  # fmt: skip
MONITOR = (*DJANGO, "stoker", "monitor", "--interval", "0.5")
SIZES = [(80, 24), (60, 20)]


class Stocked(NamedTuple):
    """Ids of what is in the store."""

    running: str
    failed: str
    waiting: str


@pytest.fixture
def stocked() -> Stocked:
    """Fill the store: a cluster with three workers, queues, dead letters, a failed job."""
    empty_tables(DEFAULT_DB_ALIAS)
    for number in range(3):
        tasks.fail.using(max_attempts=1).enqueue(f"out of paper in printer {number}")
    failed = tasks.fail.using(max_attempts=1, queue_name="mail").enqueue(HOSTILE)
    while work_off():
        pass
    running = sleep.enqueue(3600.0)
    assert claim()
    waiting = tasks.echo.using(queue_name="mail").enqueue("a letter with a long address")
    for number in range(40):
        tasks.nothing.using(queue_name=f"queue-{number:02}", run_after=600).enqueue()
    queues.pause("mail", by="alice", because=HOSTILE)
    Cluster.objects.create(
        id=uuid4(),
        name=settings_for().cluster,
        host="a-host-with-a-long-name.internal.example",
        pid=4711,
        heartbeat_us=DatabaseNow() + microseconds(3600),
        started_at=timezone.now(),
        info={
            "workers": [
                {
                    "number": 0,
                    "pid": 8,
                    "jobs_done": 3,
                    "running": [{"job": running.id, "seconds": 1.0}],
                },
                {"number": 1, "pid": 9, "jobs_done": 4, "running": []},
                {"number": 2, "pid": 10, "jobs_done": 5, "running": []},
            ]
        },
    )
    return Stocked(running.id, failed.id, waiting.id)


@contextmanager
def monitor(size: tuple[int, int] = (80, 24), **environment: str) -> Iterator[TerminalProgram]:
    with terminal_program(MONITOR, *size, **environment) as program:
        program.wait_for("[1 Overview]", ":", without="Reading")
        yield program


def go_to(program: TerminalProgram, words: str) -> None:
    """Choose the first of the next lines with these words, by the arrow keys."""

    def place() -> tuple[int, str, str]:
        program.hear()
        lines = program.screen.lines
        at = next((at for at, line in enumerate(lines) if line.startswith("> ")), -1)
        return at, lines[-1], lines[at] if at >= 0 else ""

    while words not in (before := place())[2]:
        program.press(DOWN)
        wait_for(lambda: place()[:2] != before[:2], lambda: f"{words}:\n{program.screen.text}")


def test_monitor_and_memory_show_a_running_cluster(tmp_path: Path) -> None:
    """Shown as text, as JSON and on a terminal."""
    assert run_command("stoker", "memory").returncode == 1
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        nothing.using(queue_name="mail", run_after=600).enqueue()
        running = sleep.enqueue(3600.0)

        def shown() -> str:
            return run_command("stoker", "monitor", "--once").stdout

        wait_for(lambda: str(running.id) in shown(), cluster.tail)
        text = shown()
        assert f" {cluster.process.pid} " in text
        assert "mail" in text
        (line,) = run_command("stoker", "monitor", "--once", "--json").stdout.splitlines()
        (backend,) = json.loads(line)["backends"]
        assert {one["name"] for one in backend["queues"]} == {"default", "mail"}
        assert backend["clusters"][0]["pid"] == cluster.process.pid
        assert (backend["dead_letters"], backend["faults"], backend["failures"]) == (0, [], [])
        with monitor() as program:
            program.wait_for("running, 1 of 2 busy", "tests.app.tasks.sleep", "idle")
            program.press("q")
            assert program.wait_for_end() == 0
            assert program.is_restored()
        done = run_command("stoker", "memory", "--json")
        (memory,) = json.loads(done.stdout)["clusters"]
        roles = {one["role"] for one in memory["processes"]}
        assert {"sentinel", "pusher", "monitor", "scheduler", "worker 0", "worker 1"} <= roles
        assert memory["total_bytes"] > 1 << 20
        lines = run_command("stoker", "memory").stdout.splitlines()
        assert len(lines) == 2 + len(memory["processes"])
        running.cancel()


@pytest.mark.parametrize("size", SIZES)
def test_views_and_details_fit_the_terminal(stocked: Stocked, size: tuple[int, int]) -> None:
    """The model of the terminal refuses rows that are too long and raw control characters."""
    with monitor(size) as program:
        program.wait_for("running, 1 of 3 busy", "worker 0", "tests.app.tasks.sleep")
        program.wait_for("workers 1, 2 idle", "queue", "ready")
        program.press("2")
        program.wait_for("[2 Clusters]", "worker", "idle", "attempts")
        go_to(program, "a-host")
        program.press(ENTER)
        program.wait_for("Clusters > a-host", "heartbeat", "leases")
        go_to(program, "tests.app.tasks.sleep")
        program.press(ENTER)
        program.wait_for(f"job {stocked.running[:8]}", stocked.running, "state", "running")
        program.press(ESCAPE)
        program.wait_for("heartbeat")
        program.press("3")
        program.wait_for("[3 Queues]", "mail (paused)", "ready")
        go_to(program, "mail (paused)")
        program.press(ENTER)
        program.wait_for("Queues > mail", "alice:", "\\x1b[2J\\u202eno", "stamp")
        go_to(program, ".tasks.echo")
        program.press(ENTER)
        program.wait_for("Queues > mail > job", stocked.waiting, "a letter with a long address")
        program.press("4")
        program.wait_for("[4 Dead letters]", "ValueError", "tests.app.tasks.fail")
        program.press(ENTER)
        program.wait_for("out of paper in printer", "Dead letters > ValueError")
        program.press(ENTER)
        program.wait_for("ValueError: ", "task", "queue")
        program.press(END)
        program.wait_for("raise ValueError(message)")
        program.press("q")
        program.wait_for("out of paper in printer", without="raise ValueError")
        program.press("5")
        program.wait_for("[5 Failures]", "ValueError: \\x1b[2J")
        program.press("qq")
        assert program.wait_for_end() == 0
        assert program.is_restored()


def test_long_list_scrolls_and_keeps_the_chosen_line_in_sight(stocked: Stocked) -> None:
    with monitor((60, 20)) as program:
        program.press("3")
        program.wait_for("[3 Queues]", "> default", "1-17 of 43", without="queue-30")
        program.press(PAGE_DOWN)
        program.wait_for("17-33 of 43")
        program.press("G")
        lines = program.wait_for("> queue-39", "27-43 of 43")
        assert lines[-2].startswith("> queue-39")
        program.press("k")
        program.wait_for("> queue-38")
        program.press(UP)
        program.wait_for("> queue-37")
        program.press("g")
        program.wait_for("> default", "1-17 of 43")


def test_help_is_shown_and_views_follow_each_other(stocked: Stocked) -> None:
    with monitor() as program:
        program.press("?")
        program.wait_for("Overview > Help", "Enter, right", "PgDn PgUp")
        program.press(ESCAPE)
        program.wait_for("worker 0", without="> Help")
        program.press("h")
        program.wait_for("Overview > Help")
        program.press("\t")
        program.wait_for("[2 Clusters]", without="> Help")
        program.press("\x1b[Z\x1b[Z")
        program.wait_for("[5 Failures]")
        program.press(ESCAPE)
        assert program.wait_for_end() == 0


def test_screen_is_drawn_anew_when_the_terminal_changes_its_size(stocked: Stocked) -> None:
    with monitor((80, 24)) as program:
        program.press("3")
        program.wait_for("[3 Queues]", "ready", "deferred", without="queue-30")
        program.resize(60, 20)
        lines = program.wait_for("[3 Queues]", "mail (paused)", "1-17 of 43", without="deferred")
        assert len(lines) == 20
        program.resize(120, 50)
        program.wait_for("[3 Queues]", "blocked", "deferred", "waited", "failed/min", "queue-39")


def test_styles_are_off_without_colours(stocked: Stocked) -> None:
    with monitor(NO_COLOR="1") as program:
        program.press("3")
        program.wait_for("> default", "mail (paused)")
        assert program.screen.styles <= {"0"}
    with monitor() as program:
        program.wait_for("running, 1 of 3 busy")
        assert {"1", "7"} <= program.screen.styles


def test_error_of_the_database_is_shown_until_it_answers_again(stocked: Stocked) -> None:
    with monitor() as program:
        program.wait_for("running, 1 of 3 busy")
        with connection.schema_editor() as editor:
            editor.alter_db_table(Cluster, "stoker_cluster", "stoker_elsewhere")
        try:
            program.wait_for("manage.py migrate", "what was read before", "running, 1 of 3 busy")
            program.press("?")
            program.wait_for("> Help", "Enter, right")
            program.press(ESCAPE)
        finally:
            with connection.schema_editor() as editor:
                editor.alter_db_table(Cluster, "stoker_elsewhere", "stoker_cluster")
        program.wait_for("running, 1 of 3 busy", without="what was read before")


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (None, 130)]
)
def test_terminal_is_restored_when_the_program_is_ended(
    stocked: Stocked, how: signal.Signals | None, code: int
) -> None:
    with monitor() as program:
        if how is None:
            program.press(CTRL_C)
        else:
            program.process.send_signal(how)
        assert program.wait_for_end() == code
        assert program.is_restored()


def test_terminal_is_restored_after_an_exception() -> None:
    script = (
        "from stoker.management.screen.terminal import TerminalScreen\n"
        "with TerminalScreen() as screen:\n"
        "    screen.keys()\n"
        "    raise ValueError('no stamp')\n"
    )
    with terminal_program([sys.executable, "-c", script]) as program:
        wait_for(lambda: (program.hear(), "?1049" in program.screen.modes)[1])
        assert not program.is_restored()
        program.press("x")
        assert program.wait_for_end() == 1
        assert program.is_restored()
        assert "ValueError: no stamp" in program.screen.text


def test_ctrl_z_leaves_the_terminal_to_the_shell_until_the_program_continues(
    stocked: Stocked,
) -> None:
    with monitor() as program:
        program.process.send_signal(signal.SIGTSTP)
        wait_for(lambda: (program.hear(), program.is_restored())[1], lambda: program.screen.text)
        program.process.send_signal(signal.SIGCONT)
        wait_for(lambda: (program.hear(), not program.is_restored())[1])
        program.wait_for("[1 Overview]", "running, 1 of 3 busy")


def test_lines_are_plain_without_a_screen(stocked: Stocked) -> None:
    with terminal_program([*MONITOR, "--once"], 200, 80) as program:
        assert program.wait_for_end() == 0
        text = program.screen.text
    assert not program.screen.styles
    for words in (
        "dead letters: 4",
        "ValueError",
        "recent failures",
        f"tests.app.tasks.sleep {stocked.running}",
    ):
        assert words in text
    assert re.search(r"mail \(paused\) +1 ", text)
