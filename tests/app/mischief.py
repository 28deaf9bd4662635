"""Faults in the processes that a test starts, named by STOKER_TEST_MISCHIEF."""

import os
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def begin(names: str) -> None:
    """Start the named faults. Called when Django starts in such a process."""
    for name in filter(None, names.split(",")):
        MISCHIEF[name.partition(":")[0]](name.partition(":")[2])


def hear_nothing(_: str) -> None:
    """Be like a pooler that does not pass on notifications."""
    from stoker.brokers.orm.broker import OrmBroker
    from stoker.store.wake import NoWake

    OrmBroker.open_wake = lambda _broker: NoWake()  # type: ignore[method-assign]


def open_connection(_: str) -> None:
    """Be a project that makes a query at start."""
    from django.db import connection

    before = set(open_files("self"))
    with warnings.catch_warnings():  # Django advises against it: that is why it is tried
        warnings.simplefilter("ignore", RuntimeWarning)
        connection.ensure_connection()
    for name in set(open_files("self")) - before:
        print(f"opened {name}", flush=True)


def use_cache(client: str) -> None:
    """Be a project that reads from memcached at start."""
    from django.conf import settings
    from django.core.cache import cache

    location = urlsplit(os.environ["STOKER_TEST_MEMCACHED_URL"]).netloc
    backend = f"django.core.cache.backends.memcached.{client}"
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": location}}
    before = set(open_files("self"))
    cache.get("anything")
    for name in set(open_files("self")) - before:
        print(f"opened {name}", flush=True)


def open_files(process: object) -> list[str]:
    """Return the kernel's names of the files and sockets of a process."""
    found = []
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # it is closed by now
            found.append(str(entry.readlink()))
    return found


def die_at_start(role: str) -> None:
    """Let a process end as soon as it has started."""
    from stoker.signals import post_spawn

    def die(role: str, **_: Any) -> None:
        if role == wanted:
            os._exit(3)

    wanted = role
    post_spawn.connect(die, weak=False)


def hang_at_start(mark: str) -> None:
    """Let the first worker hang before it is ready. The file that is named says that it did."""
    from stoker.signals import post_spawn

    def hang(role: str, **_: Any) -> None:
        if role == "worker" and not Path(mark).exists():
            Path(mark).touch()
            threading.Event().wait()

    post_spawn.connect(hang, weak=False)


def clock(seconds: str) -> None:
    """Let the host's clock be wrong by this many seconds."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + int(seconds)
    time.time_ns = lambda: now_ns() + int(seconds) * 1_000_000_000


def claim_and_forget(_: str) -> None:
    """Let a connection break after the claim and before its answer."""
    from stoker.brokers.orm.broker import OrmBroker
    from stoker.exceptions import BrokerUnavailable

    claim = OrmBroker.claim
    left = [1]

    def broken(self: Any, *arguments: Any, **options: Any) -> Any:
        deliveries = claim(self, *arguments, **options)
        if deliveries and left:
            left.pop()
            raise BrokerUnavailable("the answer was lost")
        return deliveries

    OrmBroker.claim = broken  # type: ignore[method-assign] # for this process


def doze(seconds: str) -> None:
    """Let the monitor sleep in the transaction that records its first failure."""
    from stoker.brokers.orm.broker import OrmBroker

    settle = OrmBroker.settle
    left = [1]

    def dozing(self: Any, *arguments: Any, **options: Any) -> Any:
        stale = settle(self, *arguments, **options)
        if left:
            left.pop()
            time.sleep(float(seconds))
        return stale

    OrmBroker.settle = dozing  # type: ignore[method-assign] # for this process


def add_silent_database(port: str) -> None:
    """Add an entry to DATABASES whose server accepts connections and never answers."""
    from django.db import connections

    silent: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "127.0.0.1",
        "PORT": port,
    }
    silent |= {"NAME": "silent", "USER": "silent"}
    databases = {**connections.settings, "silent": silent}
    connections.settings = connections.configure_settings(databases)


def lose_guards_answer(_: str) -> None:
    """Let a connection break after a claim has decided about guards and committed."""
    from collections.abc import Iterator

    from django.db import OperationalError

    from stoker.brokers.orm.claim import Claiming

    go_round = Claiming.go_round
    left = [1]

    def broken(self: Any) -> Iterator[Any]:
        parts = list(go_round(self))
        yield parts[0]
        if left and any(parts[1:]):
            left.pop()
            print("the answer was lost", flush=True)
            raise OperationalError("the answer was lost")
        yield from parts[1:]

    Claiming.go_round = broken  # type: ignore[method-assign] # for this process


def break_once(names: str) -> None:
    """Let the loop of a role raise an error once; the file that is named says that it did."""
    from stoker.cluster.monitor.monitor import Monitor
    from stoker.cluster.pusher.pusher import Pusher
    from stoker.cluster.scheduler.scheduler import Scheduler

    role, _, mark = names.partition(":")
    loops: dict[str, Any] = {"pusher": Pusher, "monitor": Monitor, "scheduler": Scheduler}
    beat = {"pusher": "_note_alive"}.get(role, "_beat")
    usual = getattr(loops[role], beat)

    def broken(self: Any) -> None:
        usual(self)
        if not Path(mark).exists():
            Path(mark).touch()
            raise RuntimeError(f"{role} breaks")

    setattr(loops[role], beat, broken)


def keep_prefetched(_: str) -> None:
    """Let the pusher release no job because all workers are busy."""
    from stoker.cluster.pusher import flights

    flights.KEEP_SECONDS = 3600.0


MISCHIEF = {
    "break": break_once,
    "clock": clock,
    "keep prefetched": keep_prefetched,
    "deaf": hear_nothing,
    "open": open_connection,
    "cache": use_cache,
    "die": die_at_start,
    "hang": hang_at_start,
    "forget": claim_and_forget,
    "doze": doze,
    "silent": add_silent_database,
    "forget guards": lose_guards_answer,
}
