"""`stoker monitor` and `stoker memory`, beside a real cluster."""

import json
import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from tests.app.tasks import nothing, sleep
from tests.cluster.clusters import (
    DJANGO,
    ROOT,
    environment_of_commands,
    run_command,
    running_cluster,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("db")


def test_monitor_and_memory_show_a_running_cluster(tmp_path: Path) -> None:
    """As text, as JSON and on a terminal."""
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
        assert backend["dead_letters"] == 0
        screen, code = on_a_terminal(str(running.id)[:8])
        assert code == 0
        assert "\x1b[?1049l" in screen, "the terminal is as it was before"
        done = run_command("stoker", "memory", "--json")
        (memory,) = json.loads(done.stdout)["clusters"]
        roles = {one["role"] for one in memory["processes"]}
        assert {"sentinel", "pusher", "monitor", "scheduler", "worker 0", "worker 1"} <= roles
        assert memory["total_bytes"] > 1 << 20
        lines = run_command("stoker", "memory").stdout.splitlines()
        assert len(lines) == 2 + len(memory["processes"])
        running.cancel()


def on_a_terminal(awaited: str) -> tuple[str, int]:
    """Run `stoker monitor` on a terminal until it shows a text, and then press q. Return its output
    and exit code."""
    ours, theirs = pty.openpty()
    environment = environment_of_commands({"TERM": "xterm", "COLUMNS": "160", "LINES": "50"})
    process = subprocess.Popen(
        [*DJANGO, "stoker", "monitor", "--interval", "0.5"],
        cwd=ROOT,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    screen = ""
    try:
        while awaited not in screen and process.poll() is None:
            screen += heard(ours)
        os.write(ours, b"q")
        while process.poll() is None:
            screen += heard(ours)
        screen += heard(ours)
    finally:
        process.kill()
        code = process.wait()
        os.close(ours)
    return screen, code


def heard(terminal: int) -> str:
    if not select.select([terminal], [], [], 0.1)[0]:
        return ""
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # the other end is closed
        return ""
