"""``manage.py stoker run``: a cluster, until it is stopped."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from django.core.management.base import CommandParser
from django.utils.module_loading import autodiscover_modules

from stoker.cluster.plan import Plan
from stoker.cluster.process import start_method
from stoker.cluster.reload import is_trial, start_again
from stoker.conf import Settings
from stoker.exceptions import ConfigurationError, StokerError

from .subcommand import ExitCode, Subcommand, add_backend, backend_settings, refuse, setting

START_SECONDS = 30.0
"""How long the child may take to start, over and above the deadline of the database."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the look at the store came to."""

    is_fit: bool = True
    """False: nothing can come of a cluster until somebody has done something."""
    sentence: str = ""
    """What is wrong; with ``is_fit``, what passes by itself."""
    weaknesses: tuple[str, ...] = ()
    """What may lose jobs one day."""


def look_at_store(plan: Plan) -> Finding:
    """Whether a cluster can work with the store as it is: its tables are there, or it is only out
    of reach for now."""
    context: Any = multiprocessing.get_context(start_method(plan))
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_look, args=(plan, theirs), name="stoker preflight")
    process.start()
    theirs.close()
    limit_seconds = START_SECONDS + plan.settings.database_seconds
    try:
        if not ours.poll(limit_seconds):
            return Finding(sentence=f"The store has not answered for {limit_seconds:.0f} s.")
        finding = ours.recv()
        assert isinstance(finding, Finding)
        return finding
    except EOFError:
        process.join()
        return Finding(sentence=f"The look at the store ended with exit code {process.exitcode}.")
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def release_connections() -> None:
    """Close every connection to a database that this process has.

    Raises:
        ConfigurationError: one stays open, so that no cluster may start from here.
    """
    from django.db import connections

    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None:
            close_pool()
        if connection.connection is not None:
            raise ConfigurationError(
                f"The connection to the database {connection.alias!r} cannot be closed, for it is "
                "in a transaction: start the cluster outside of it."
            )


def _look(plan: Plan, answer: Connection) -> None:
    """The child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told as well, and ends us
    import django

    django.setup()
    answer.send(_found(plan))


def _found(plan: Plan) -> Finding:
    from django.core.exceptions import ImproperlyConfigured
    from django.db import DatabaseError, InterfaceError

    from stoker.brokers.adapters import broker_for
    from stoker.brokers.patience import set_deadlines
    from stoker.exceptions import BrokerUnavailable, NotMigrated, PoolerRefused

    from .subcommand import one_sentence

    try:
        broker_for(plan.settings)  # a wrong setting comes before missing tables
        set_deadlines(plan.settings)
        _read_every_table(plan.settings.database)
        return Finding(weaknesses=_ask_broker(plan))
    except (NotMigrated, PoolerRefused) as error:
        return Finding(is_fit=False, sentence=str(error))
    except (BrokerUnavailable, DatabaseError, InterfaceError) as error:
        return Finding(sentence=one_sentence(error))
    except (StokerError, ImproperlyConfigured) as error:
        return Finding(is_fit=False, sentence=one_sentence(error))


def _read_every_table(alias: str) -> None:
    """A row of each, for the names of the columns: an upgrade may have brought new ones."""
    from django.apps import apps

    from stoker.jobs.states import explained

    with explained(alias):
        for model in apps.get_app_config("stoker").get_models():
            columns = [field.attname for field in model._meta.concrete_fields]
            list(model._base_manager.using(alias).values_list(*columns)[:1])


def _ask_broker(plan: Plan) -> tuple[str, ...]:
    from stoker.brokers.adapters import broker_for

    broker = broker_for(plan.settings)
    if not broker.capabilities.shared:
        raise ConfigurationError(
            f"{plan.settings.broker} keeps the jobs of each process to itself, so a cluster would "
            "never see any: let BROKER be orm://default, say."
        )
    weaknesses: list[str] = []
    if not broker.capabilities.transactional:
        broker.ping()
        weaknesses = broker.weaknesses()
    broker.close()
    return tuple(weaknesses)


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LEVEL_OF_VERBOSITY = {0: "WARNING", 1: "INFO"}
OVERRIDES = ("workers", "concurrency", "shutdown_seconds")
"""Settings that the command line may change."""


class Run(Subcommand):
    name = "run"
    summary = "Run a cluster until it is stopped."
    description = """\
Run a cluster: worker processes that run the jobs, and the processes that feed, record and watch
them. Any number of clusters may run, on any number of hosts.

To stop it, send SIGTERM or press Ctrl-C: no further job is started, running jobs have
--shutdown-seconds to finish, and what is interrupted then is given back without losing an
attempt. A second signal interrupts at once. SIGHUP starts the cluster again with fresh code,
as the same process, if that code starts; otherwise the old code goes on.

It does not start when settings are wrong or Stoker's tables are missing. A store that is only
out of reach is waited for."""
    examples = """\
  manage.py stoker run                              everything as the settings say
  manage.py stoker run --workers 4 --queues mail    4 processes, for one queue only
  manage.py stoker run --drain                      do what there is to do, then end
  manage.py stoker run --reload                     for development"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_backend(parser)
        parser.add_argument(
            "--workers",
            type=setting("WORKERS", int),
            metavar="N",
            help="Worker processes. Default: the setting WORKERS.",
        )
        parser.add_argument(
            "--concurrency",
            type=setting("CONCURRENCY", int),
            metavar="N",
            help="Jobs that each worker runs at once. Default: the setting CONCURRENCY.",
        )
        parser.add_argument(
            "--queues",
            metavar="A,B",
            help="Only jobs of these queues. Default: those under QUEUES, or all where it is [].",
        )
        parser.add_argument(
            "--shutdown-seconds",
            type=setting("SHUTDOWN_SECONDS", float),
            metavar="SECONDS",
            help="How long running jobs may go on after SIGTERM. Default: the setting "
            "SHUTDOWN_SECONDS.",
        )
        add_ways_to_run(parser)

    def run(self, options: dict[str, Any]) -> ExitCode:
        plan = plan_of(options)
        release_connections()
        finding = look_at_store(plan)
        if not finding.is_fit:
            raise refuse(finding.sentence)
        if is_trial():
            # Workers import these when they meet them: mistakes in them should show now.
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
        except OSError as error:  # of the folder for what its processes share
            raise refuse(str(error)) from error
        release_connections()
        multiprocessing.current_process().name = "sentinel"  # as its log lines are signed
        if sentinel.run():
            sentinel.reloader.settle()
            start_again()


def add_ways_to_run(parser: CommandParser) -> None:
    parser.add_argument(
        "--drain",
        action="store_true",
        help="Stop as soon as no job is ready or running. Deferred jobs stay.",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="For development: start again when a Python file or template of the project changes, "
        "unless a mistake in it would keep the cluster from starting.",
    )
    parser.add_argument(
        "--log-level",
        type=str.upper,
        choices=LEVELS,
        metavar="LEVEL",
        help="DEBUG, INFO, WARNING or ERROR: what Stoker itself tells, on standard error or where "
        "the project's LOGGING sends it, unless that has a level for 'stoker'. Default: INFO; with "
        "-v 0 WARNING, with -v 2 DEBUG.",
    )
    parser.add_argument(
        "--log-json",
        action="store_true",
        help="Write these lines as JSON where the project's LOGGING sets up no handler for them.",
    )


def plan_of(options: dict[str, Any]) -> Plan:
    """What the command line asks for.

    Raises:
        ConfigurationError: the settings are wrong, or do not go with it.
    """
    if options["drain"] and options["reload"]:
        raise ConfigurationError(
            "--drain ends the cluster when there is nothing to do, --reload waits for changes: "
            "choose one of them."
        )
    settings = backend_settings(options["backend"])
    return Plan(
        alias=settings.alias,
        queues=queues_of(options["queues"], settings),
        drain=options["drain"],
        reload=options["reload"],
        console=True,
        logs_json=options["log_json"],
        log_level=options["log_level"] or LEVEL_OF_VERBOSITY.get(options["verbosity"], "DEBUG"),
        overrides=tuple((name, options[name]) for name in OVERRIDES if options[name] is not None),
    )


def queues_of(text: str | None, settings: Settings) -> tuple[str, ...]:
    """The names in ``a,b``.

    Raises:
        ConfigurationError: one is empty, or the backend has no such queue.
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
