"""Fill a store with jobs in every state, and write its rows to a file.

`python -m tests.upgrade` runs this with the code of an older version, so it uses only public names
and the tables. A cluster runs the first jobs and is killed while it has some of them.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from django.apps import apps
from django.core.management import call_command
from django.db import connection, models, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings

import stoker
from stoker import dead_letters, queues, schedules

from tests.app.models import Ledger
from tests.upgrade import tasks

WAIT_SECONDS = 120
LEFT_OUT = {"Sample", "Tally"}
"""The tables of metrics. They have no jobs, and their rows begin at whole minutes."""
YEAR_US = 366 * 86400 * 10**6


def fill() -> None:
    """Leave a store as a host does that loses its power."""
    cluster = subprocess.Popen([sys.executable, "-m", "django", "stoker", "run"])
    try:
        end_some_jobs()
        run_some_jobs()
        block_some_jobs()
        start_some_workflows()
        fire_some_ticks()
        family = psutil.Process(cluster.pid).children(recursive=True)
    finally:
        cluster.kill()
        cluster.wait()
    psutil.wait_procs(family)
    leave_some_jobs()


def end_some_jobs() -> None:
    """Let jobs succeed, fail, snooze, be cancelled, and wait for their next attempt."""
    tasks.work.enqueue("succeeded")
    tasks.work.using(run_after=timedelta(days=1)).enqueue("cancelled").cancel()
    tasks.work_once.enqueue("fails and is left")
    discarded = tasks.work_once.enqueue("fails and is discarded")
    requeued = tasks.work_once.enqueue("fails and is requeued by hand")
    tasks.work_again.enqueue("fails and is requeued after an hour")
    tasks.work_until_halted.enqueue("fails and halts")
    tasks.work_until_halted.enqueue("blocked by a halted sequence")
    tasks.work_after_an_hour.enqueue("fails and is retried")
    tasks.work.enqueue("snoozed for an hour")
    wait_for(lambda: count("DeadLetter") == 5 and count("Deferred") == 2)
    wait_for(lambda: count("Job", status="SUCCESSFUL") == 1 and count("Blocked") == 1)
    letter = table("DeadLetter").objects.get(job_id=discarded.id)
    dead_letters.discard(letter.pk, by="alice", because="not needed")
    hour = timedelta(hours=1)
    dead_letters.requeue(requeued.id, by="alice", because="the bank is back", run_after=hour)


def run_some_jobs() -> None:
    """Let jobs run when the cluster is killed."""
    tasks.work.enqueue("runs")
    tasks.work.enqueue("runs and is cancelled")
    tasks.work.using(on_finish=tasks.follow.s("hook")).enqueue("runs before its hook")
    tasks.work_from_checkpoint.enqueue("runs from a checkpoint")
    wait_for(lambda: began("runs", 4))


def block_some_jobs() -> None:
    """Let jobs hold guards, and others wait for them."""
    tasks.work_locked.enqueue("runs with the lock")
    tasks.work_limited.enqueue("runs in the limit")
    tasks.work_limited.enqueue("runs in the limit, too")
    tasks.work_in_order.enqueue("runs in the sequence")
    tasks.work_rated.enqueue("succeeded in the rate")
    wait_for(lambda: began("runs", 8) and began("succeeded", 2))
    tasks.work_locked.enqueue("blocked by the lock")
    tasks.work_limited.enqueue("blocked by the limit")
    tasks.work_in_order.enqueue("blocked by the sequence")
    tasks.work_rated.enqueue("blocked by the rate")
    wait_for(lambda: count("Blocked") == 5)


def start_some_workflows() -> None:
    """Leave chains, groups and a chord half done, and one chain while it is undone."""
    work = tasks.work.si
    stoker.chain(work("chain 1"), work("runs as chain 2"), work("chain 3")).enqueue()
    stoker.group(work("group 1"), work("runs as group 2")).enqueue()
    stoker.chord([work("chord 1"), work("runs as chord 2")], work("chord end")).enqueue()
    stoker.group(work("runs as group 3"), work("group 3 in turn"), at_once=1).enqueue()
    fails = tasks.work_once.si("fails and is undone")
    stoker.chain(work("undone").undo(work("runs as undo")), fails).enqueue()
    wait_for(lambda: began("runs", 13) and count("Step", state="SUCCESSFUL") >= 4)


def fire_some_ticks() -> None:
    """Leave a schedule that is over, and one that is due in an hour."""
    second = stoker.every(seconds=1, repeats=2, kwargs={"name": "tick of a second"})
    hour = stoker.every(hours=1, repeats=1, kwargs={"name": "tick of an hour"})
    schedules.create("every second", tasks.work, second)
    schedules.create("every hour", tasks.work, hour)
    wait_for(lambda: schedules.get("every second").is_over)
    wait_for(lambda: began("tick of a second", 2) and not count("Ready"))


def leave_some_jobs() -> None:
    """Enqueue jobs after the cluster is gone."""
    tasks.work.enqueue("ready")
    tasks.work.using(queue_name="mail").enqueue("ready in a paused queue")
    queues.pause("mail", by="alice", because="the mail server moves")
    tasks.work.using(run_after=timedelta(hours=1)).enqueue("deferred for an hour")
    tasks.work.using(run_after=timedelta(days=1)).enqueue("deferred for a day")
    tasks.work_unique.using(run_after=timedelta(hours=1)).enqueue("unique")
    running = Ledger.objects.get(note="runs and is cancelled").job_id
    tasks.work.get_result(running).cancel()
    stoker.lock("nightly").acquire()
    no_server = {
        "BACKEND": "stoker.backend.StokerBackend",
        "OPTIONS": {"BROKER": "redis://127.0.0.1:1/0"},
    }
    with override_settings(TASKS={"default": no_server}), transaction.atomic():
        tasks.work.enqueue("in the outbox")


def write(path: Path, version: str) -> None:
    """Write all rows as JSON, one on a line. Moments become seconds from now, as in "@-1.5"."""
    now = datetime.now(UTC)
    applied = MigrationRecorder(connection).applied_migrations()
    last = max(name for app, name in applied if app == "stoker")
    lines = [
        f"[{json.dumps(model.__name__)}, {json.dumps(row_of(one, now))}]"
        for model in apps.get_app_config("stoker").get_models()
        if model.__name__ not in LEFT_OUT
        for one in model._default_manager.order_by("pk")
    ]
    head = f'{{"version": "{version}", "migration": "{last}", "rows": ['
    text = "\n".join([head, ",\n".join(lines), "]}"])
    for found, written in {
        socket.gethostname(): "web-1",
        str(Path(stoker.__file__).parents[1]): "/srv/shop/src",
        str(Path(__file__).parents[2]): "/srv/shop",
        sys.prefix: "/srv/shop/.venv",
        tempfile.gettempdir(): "/run",
    }.items():
        # Not inside of packages and values, which are in base64.
        text = re.sub(rf"(?<![\w+/]){re.escape(found)}(?![\w+])", written, text)
    path.write_text(f"{text}\n")


def row_of(one: models.Model, now: datetime) -> dict[str, Any]:
    """Return the columns that differ from their defaults."""
    row = {}
    for field in one._meta.concrete_fields:
        value = getattr(one, field.attname)
        usual = field.get_default() if field.has_default() else None
        if value != usual and not isinstance(field, models.AutoField):
            row[field.attname] = plain(value, now)
    return row


def plain(value: Any, now: datetime) -> Any:
    """Return a value that JSON has."""
    now_us = round(now.timestamp() * 10**6)
    match value:
        case bytes() | memoryview():
            return bytes(value).decode("latin-1")
        case UUID():
            return str(value)
        case datetime():
            return f"@{(value - now).total_seconds():.6f}"
        case float() if abs(value - now.timestamp()) < YEAR_US / 10**6:
            return f"@{value - now.timestamp():.6f}"
        case int() if abs(value - now_us) < YEAR_US:
            return f"@{(value - now_us) / 10**6:.6f}"
        case list() | tuple():
            return [plain(one, now) for one in value]
        case dict():
            return {name: plain(one, now) for name, one in value.items()}
    return value


def table(name: str) -> Any:
    return apps.get_model("stoker", name)


def count(name: str, **columns: Any) -> int:
    return int(table(name).objects.filter(**columns).count())


def began(prefix: str, many: int) -> bool:
    """Return whether this many jobs whose names begin like this have begun."""
    return Ledger.objects.filter(note__startswith=prefix).count() == many


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("the cluster did not do what the store needs")
        time.sleep(0.1)


def main(path: str, version: str) -> None:
    os.environ[tasks.FILLING] = "1"
    call_command("migrate", verbosity=0)
    fill()
    write(Path(path), version)
    os._exit(0)  # without giving back the lock
