"""``manage.py stoker run``: run a cluster until it is stopped."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from django.utils.module_loading import autodiscover_modules

from stoker.cluster.plan import Plan
from stoker.cluster.process import drop_caches, start_method
from stoker.cluster.reload import is_trial
from stoker.conf import Settings
from stoker.exceptions import (
    BrokerUnavailable,
    ConfigurationError,
    NotMigrated,
    PoolerRefused,
    StokerError,
)
from stoker.values.text import first_line_of

from .arguments import setting
from .subcommand import BACKEND, ExitCode, Subcommand, backend_settings, option, refuse

if TYPE_CHECKING:
    from stoker.brokers.dispatch import Dispatch

START_SECONDS = 30.0
"""How many seconds longer than the database's deadline the child process may take to start."""


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of checking whether a cluster can work with the store."""

    is_fit: bool = True
    """False: no cluster can work until an operator changes something."""
    sentence: str = ""
    """The problem; "" = none. With ``is_fit``, the problem is temporary."""
    weaknesses: tuple[str, ...] = ()
    """Settings of the broker that may lose jobs, and limits that are not in effect."""


def look_at_store(plan: Plan) -> StoreCheck:
    """Check whether a cluster can work with the store.

    It can if the tables exist. It can also start while the store is unreachable.
    """
    context: Any = multiprocessing.get_context(start_method(plan))
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_look, args=(plan, theirs), name="stoker preflight")
    limit_seconds = START_SECONDS + plan.settings.database_seconds
    try:
        process.start()
        theirs.close()
        if not ours.poll(limit_seconds):
            return StoreCheck(sentence=f"The store has not answered for {limit_seconds:.0f} s.")
        finding = ours.recv()
        assert isinstance(finding, StoreCheck)
        return finding
    except EOFError:
        process.join()
        return StoreCheck(
            sentence=f"The check of the store ended with exit code {process.exitcode}."
        )
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        process.close()
        ours.close()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within this block, SIGTERM ends the process. The sentinel replaces this by an orderly stop.

    The kernel drops a signal to process 1 of a container unless the process has a handler for it.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    # Handle a signal that arrived while this process restarted, see reload.py.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _leave(_number: int, _frame: Any) -> NoReturn:
    sys.exit(ExitCode.DONE)


def release_connections() -> None:
    """Close every connection of this process to a database or a cache.

    Raises:
        ConfigurationError: A connection could not be closed, so no cluster may start here.
    """
    from django.db import connections

    drop_caches()
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None:
            close_pool()
        if connection.connection is not None:
            raise ConfigurationError(
                f"The connection to the database {connection.alias!r} cannot be closed, because "
                "it is in a transaction: start the cluster outside of it."
            )


def _look(plan: Plan, answer: Connection) -> None:
    """Run in the child process."""
    # The parent process gets the signal, too, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    import django

    django.setup()
    answer.send(_found(plan))


def _found(plan: Plan) -> StoreCheck:
    from django.core.exceptions import ImproperlyConfigured
    from django.db import DatabaseError, InterfaceError

    from stoker.brokers.adapters import broker_for
    from stoker.models.outbox import why_ambiguous
    from stoker.store.engines import engine_of
    from stoker.store.statements import set_deadlines

    try:
        broker = broker_for(plan.settings)  # report a wrong setting before missing tables
        set_deadlines(plan.settings)
        engine = engine_of(plan.settings.database)
        if reason := why_ambiguous(engine.alias) or engine.why_unusable():
            return StoreCheck(is_fit=False, sentence=reason)
        _read_every_table(plan.settings.database)
        return StoreCheck(weaknesses=(*engine.weaknesses(), *_ask(broker)))
    except (NotMigrated, PoolerRefused) as error:
        return StoreCheck(is_fit=False, sentence=str(error))
    except (BrokerUnavailable, DatabaseError, InterfaceError) as error:
        return StoreCheck(sentence=first_line_of(error))
    except (StokerError, ImproperlyConfigured) as error:
        return StoreCheck(is_fit=False, sentence=first_line_of(error))


def _read_every_table(alias: str) -> None:
    """Read a row of each table with all columns, because an upgrade may have added columns."""
    from django.apps import apps

    from stoker.store.engines.sessions import explained

    with explained(alias):
        for model in apps.get_app_config("stoker").get_models():
            columns = [field.attname for field in model._meta.concrete_fields]
            list(model._base_manager.using(alias).values_list(*columns)[:1])


def _ask(broker: Dispatch) -> tuple[str, ...]:
    if not broker.capabilities.shared:
        raise ConfigurationError(
            f"{broker.settings.broker} keeps jobs in the memory of each process, so a "
            "cluster would never see them: set BROKER to orm://default, for example."
        )
    weaknesses: list[str] = []
    if not broker.capabilities.transactional:
        broker.ping()
        weaknesses = broker.weaknesses()
    broker.close()
    return tuple(weaknesses)


NOT_HERE = (
    "A cluster cannot run on Windows: run it in WSL or in a Linux container, on the same database. "
    "Enqueueing, results, the admin, the dashboard and all other commands work here."
)
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LEVEL_OF_VERBOSITY = {0: "WARNING", 1: "INFO"}
OVERRIDES = ("workers", "concurrency", "shutdown_seconds")
"""Settings that the command line may override."""


class RunCommand(Subcommand):
    """Run a cluster until it is stopped.

    Run a cluster: worker processes that run the jobs, and the processes that claim jobs, record
    outcomes and watch the workers. Any number of clusters may run, on any number of hosts.

    To stop it, send SIGTERM or press Ctrl-C: no further job starts, running jobs have
    --shutdown-seconds to finish, and interrupted jobs are released without losing an attempt. A
    second signal interrupts at once. SIGHUP restarts the cluster with the current code, in the same
    process. If the new code cannot start, the old code continues.

    It does not start if settings are wrong or Stoker's tables are missing. It starts and waits if
    the store is only unreachable.

    Examples:
      manage.py stoker run                              as configured in the settings
      manage.py stoker run --workers 4 --queues mail    4 processes, for one queue only
      manage.py stoker run --drain                      run the waiting jobs, then end
      manage.py stoker run --reload                     for development
      manage.py stoker run --single                     on a small host: less memory
    """

    name = "run"
    options = (
        BACKEND,
        option(
            "--workers",
            type=setting("WORKERS", int),
            metavar="N",
            help="Worker processes. Default: the setting WORKERS.",
        ),
        option(
            "--single",
            action="store_true",
            help="For small hosts and development: claim, record and schedule jobs in one process "
            "instead of three. Starts one worker process, unless --workers names another number.",
        ),
        option(
            "--concurrency",
            type=setting("CONCURRENCY", int),
            metavar="N",
            help="Jobs that each worker runs at once. Default: the setting CONCURRENCY.",
        ),
        option(
            "--queues",
            metavar="A,B",
            help="Only jobs of these queues. Default: those under QUEUES, or all if it is [].",
        ),
        option(
            "--shutdown-seconds",
            type=setting("SHUTDOWN_SECONDS", float),
            metavar="SECONDS",
            help="How long running jobs may continue after SIGTERM. Default: the setting "
            "SHUTDOWN_SECONDS.",
        ),
        option(
            "--drain",
            action="store_true",
            help="Stop as soon as no job is ready or running, and the jobs of clusters without a "
            "heartbeat for LEASE_SECONDS are rescued. Deferred jobs stay.",
        ),
        option(
            "--reload",
            action="store_true",
            help="For development: start again when a Python file or template of the project "
            "changes, unless the new code cannot start.",
        ),
        option(
            "--log-level",
            type=str.upper,
            choices=LEVELS,
            metavar="LEVEL",
            help="DEBUG, INFO, WARNING or ERROR: the level of Stoker's log lines. If the project's "
            "LOGGING has a level for 'stoker', that level applies instead. Default: INFO; with "
            "-v 0 WARNING, with -v 2 DEBUG.",
        ),
        option(
            "--log-json",
            action="store_true",
            help="Write log lines as JSON if the project's LOGGING has no handler for them.",
        ),
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        if sys.platform == "win32":
            raise refuse(NOT_HERE)
        with ended_by_sigterm():
            return self._run(options)

    def _run(self, options: dict[str, Any]) -> ExitCode:
        plan = plan_of(options)
        release_connections()
        # If SIGCHLD is ignored, the kernel does not report the exit codes of children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        finding = look_at_store(plan)
        if not finding.is_fit:
            raise refuse(finding.sentence)
        if is_trial():
            # Workers import these modules on first use. Import them now to find errors in them.
            autodiscover_modules("tasks")
            return ExitCode.DONE
        for sentence in finding.weaknesses:
            self.remark(sentence)
        if finding.sentence:
            sentence = finding.sentence.rstrip(".")
            self.remark(f"{sentence}. The cluster starts, and keeps trying.")
        self._run_cluster(plan)
        return ExitCode.DONE

    def _run_cluster(self, plan: Plan) -> None:
        from stoker.cluster.sentinel import Sentinel

        try:
            sentinel = Sentinel(plan)
        except OSError as error:  # the folder of the shared files cannot be used
            raise refuse(str(error)) from error
        release_connections()
        multiprocessing.current_process().name = "sentinel"  # as its log lines are signed
        if sentinel.run():
            sentinel.reloader.settle()
            sentinel.reloader.start_again()


def plan_of(options: dict[str, Any]) -> Plan:
    """Return the plan that the command line describes.

    Raises:
        ConfigurationError: The settings are wrong, or contradict the options.
    """
    if options["drain"] and options["reload"]:
        raise ConfigurationError(
            "--drain ends the cluster when there is nothing to do, --reload waits for changes: "
            "choose one of them."
        )
    settings = backend_settings(options["backend"])
    overrides = {name: options[name] for name in OVERRIDES if options[name] is not None}
    if options["single"]:
        overrides.setdefault("workers", 1)
    return Plan(
        alias=settings.alias,
        queues=queues_of(options["queues"], settings),
        drain=options["drain"],
        reload=options["reload"],
        console=True,
        logs_json=options["log_json"],
        log_level=options["log_level"] or LEVEL_OF_VERBOSITY.get(options["verbosity"], "DEBUG"),
        single=options["single"],
        overrides=tuple(overrides.items()),
    )


def queues_of(text: str | None, settings: Settings) -> tuple[str, ...]:
    """Parse a list of queue names, as in ``a,b``.

    Raises:
        ConfigurationError: A name is empty, or the backend has no such queue.
    """
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise ConfigurationError(
            f"--queues {text!r} has an empty name: write --queues mail,default"
        )
    unknown = [name for name in names if settings.queues and name not in settings.queues]
    if unknown:
        raise ConfigurationError(
            f'TASKS["{settings.alias}"] has no queue {unknown[0]!r}. Its QUEUES are: '
            f"{', '.join(settings.queues)}."
        )
    return names
