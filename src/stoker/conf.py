"""The settings in ``TASKS`` as one frozen dataclass per backend.

Each field below is one option; docs/reference/settings.md prints its ``doc``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from functools import cache
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from stoker.exceptions import ConfigurationError
from stoker.setting_values import (
    LetterRetention,
    LogKeeping,
    NamedReporter,
    Retention,
    are_queue_names,
    backoff,
    checked_options,
    compression,
    fields_by_key,
    flag,
    letter_retention,
    log_keeping,
    names,
    one_of,
    option,
    option_problems,
    optional,
    reporters,
    results_place,
    retention,
    seconds,
    suggestion,
    text,
    whole,
)
from stoker.tasks.arguments import SECRETS
from stoker.tasks.dead_letters import DeadLetters, letter_policies
from stoker.tasks.schedules import Scheduled, schedules_by_name

ADD_THE_APP = "Add 'stoker' to INSTALLED_APPS, and run manage.py migrate."


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked options of one backend in ``TASKS``."""

    alias: str = "default"
    queues: tuple[str, ...] = field(default=("default",), hash=False)
    """``QUEUES`` of the backend; empty = any queue name is accepted."""

    broker: str = option(
        "BROKER", "orm://default", text,
        "Where packages wait, as a URL: `orm://ALIAS` (a database of `DATABASES`), "
        "`redis://HOST:PORT/DATABASE` (also `rediss://`, `unix://`, `redis+sentinel://`, "
        "`redis+cluster://`), `mongodb://HOST:PORT/DATABASE` (also `mongodb+srv://`), "
        "`disque://HOST:PORT,HOST:PORT`, `ironmq://PROJECT:TOKEN@HOST`, `sqs://REGION/PREFIX` or "
        "`memory://`.",
        in_hash=True,
    )  # fmt: skip
    store: str = option(
        "DATABASE", "default", text,
        "The database of `DATABASES` for results, guards, schedules and dead letters if `BROKER` "
        "is outside the database; with `orm://ALIAS` they are in that one.",
    )  # fmt: skip
    cluster: str = option(
        "CLUSTER", "stoker", text,
        "The cluster's name. Packages are signed with it, so a cluster cannot open packages of "
        "another name.",
        in_hash=True,
    )  # fmt: skip
    workers: int = option(
        "WORKERS", os.cpu_count() or 1, whole(1, 1024),
        "Worker processes. Default: the number of processor cores.",
    )  # fmt: skip
    max_workers: int | None = option(
        "MAX_WORKERS", None, optional(whole(1, 1024)),
        "Maximum number of worker processes to which a running cluster can be resized; "
        "None = twice `WORKERS`.",
    )  # fmt: skip
    concurrency: int = option(
        "CONCURRENCY", 1, whole(1, 10_000),
        "Jobs that one worker runs at once: 1 = one after another; more = threads for sync "
        "tasks, one event loop for async tasks.",
    )  # fmt: skip
    timeout_seconds: float | None = option(
        "TIMEOUT", None, optional(seconds(0.001, 10**9)),
        "Seconds a task may run before `TaskTimeout` is raised in it; None = no limit.",
    )  # fmt: skip
    timeout_grace_seconds: float = option(
        "TIMEOUT_GRACE_SECONDS", 5.0, seconds(0, 10**9),
        "Seconds after the time-out until the worker process is killed, if the task does not end.",
    )  # fmt: skip
    lease_seconds: float = option(
        "LEASE_SECONDS", 60.0, seconds(1),
        "How long a claimed job belongs to its cluster without a heartbeat. The cluster extends "
        "the lease while the job runs, so it does not limit the run time; it only decides how "
        "soon another cluster takes over.",
    )  # fmt: skip
    max_attempts: int = option(
        "MAX_ATTEMPTS", 3, whole(1, 10_000),
        "Maximum number of attempts, unless the task sets its own.",
    )  # fmt: skip
    max_crashes: int = option(
        "MAX_CRASHES", 3, whole(1, 10_000),
        "How often a job may crash its worker process before it becomes a dead letter, "
        "even if it has attempts left.",
    )  # fmt: skip
    backoff: Any = option(
        "BACKOFF", None, optional(backoff),
        "Delay before the next attempt: seconds, a list of seconds, or `f(exception, "
        "task_result)`. Default: exponential from 2 s to 10 min with jitter.",
    )  # fmt: skip
    serializer: str = option(
        "SERIALIZER", "json", one_of("json", "pickle"),
        "`json` keeps dates, times, Decimal, UUID, bytes and tuple exactly; `pickle` takes "
        "any object.",
    )  # fmt: skip
    compress_above_bytes: int | None = option(
        "COMPRESS", None, compression,
        "Compress packages larger than this many bytes; True = 1024.",
    )  # fmt: skip
    max_package_bytes: int = option(
        "MAX_PACKAGE_BYTES", 1 << 20, whole(256),
        "The largest package that `enqueue` accepts.",
    )  # fmt: skip
    keep_results: Retention = option(
        "KEEP_RESULTS", Retention(), retention,
        "How long and how many results are kept: a dict of `successful_seconds` (default 7 days), "
        "`successful_count`, `failed_seconds` (default 90 days), `failed_count`; True = for "
        "ever; False = no successes.",
    )  # fmt: skip
    results: str = option(
        "RESULTS", "database", results_place,
        "Where results of jobs that succeed at their first attempt are kept: `database`; `redis`, "
        "the Redis of `BROKER`, for `successful_seconds` and at most `successful_count` (default "
        "1,000,000); or `cache:NAME`, a cache of `CACHES`, for `successful_seconds` or until it "
        "drops them.",
    )  # fmt: skip
    dead_letters: tuple[tuple[str, DeadLetters], ...] = option(
        "DEAD_LETTERS", (), letter_policies,
        "When dead letters are requeued automatically: a `DeadLetters`, or a dict of queue and "
        "`DeadLetters`. A task's own `dead_letters` takes precedence. Default: never.",
    )  # fmt: skip
    keep_dead_letters: LetterRetention = option(
        "KEEP_DEAD_LETTERS", LetterRetention(), letter_retention,
        "How long dead letters are kept: a dict of `closed_seconds`, since they were resolved or "
        "discarded, and `open_seconds`, since their last failure; None = for ever. Default: closed "
        "ones 30 days, open ones for ever.",
    )  # fmt: skip
    schedules: tuple[tuple[str, str, Scheduled], ...] = option(
        "SCHEDULES", (), schedules_by_name,
        "Schedules by name: each a dict of `task` (its dotted path) and `schedule`: `Cron(...)`, "
        "`every(...)` or `once(...)`. Tasks can also declare schedules, and users can add some.",
    )  # fmt: skip
    keep_ticks: int = option(
        "KEEP_TICKS", 1000, whole(10, 1_000_000),
        "Number of ticks to keep for each schedule.",
    )  # fmt: skip
    keep_metrics_seconds: float = option(
        "KEEP_METRICS", 30 * 86400.0, seconds(0),
        "How long to keep the history of metrics, which the dashboard and `stoker monitor` show: "
        "seconds or a timedelta; 0 = write no history.",
    )  # fmt: skip
    logs: LogKeeping | None = option(
        "LOGS", None, optional(log_keeping),
        "Keep the lines that jobs log and print: a dict of `level` (default `INFO`), "
        "`keep_seconds` (default 7 days), `max_lines` (default 1000) and `max_bytes` (default "
        "256 KiB), both of one attempt. Default: none are kept.",
    )  # fmt: skip
    scheduler: bool = option("SCHEDULER", True, flag, "Whether clusters fire schedules.")
    prefetch: int = option(
        "PREFETCH", 500, whole(0, 10_000),
        "Maximum number of jobs of short tasks that wait inside one worker. Jobs of long or "
        "unknown tasks are sent to idle workers only.",
    )  # fmt: skip
    poll_seconds: float = option(
        "POLL_SECONDS", 1.0, seconds(0.01),
        "Interval at which an idle cluster polls for jobs if nothing wakes it.",
    )  # fmt: skip
    shutdown_seconds: float = option(
        "SHUTDOWN_SECONDS", 25.0, seconds(0),
        "How long running jobs may continue after SIGTERM before they are interrupted and "
        "released.",
    )  # fmt: skip
    recycle_jobs: int | None = option(
        "RECYCLE_JOBS", None, optional(whole(1)),
        "Replace a worker process after this many jobs.",
    )  # fmt: skip
    recycle_memory_mb: int | None = option(
        "RECYCLE_MEMORY_MB", None, optional(whole(1)),
        "Replace a worker process whose resident memory has grown past this many MiB.",
    )  # fmt: skip
    start_method: str | None = option(
        "START_METHOD", None, optional(one_of("fork", "spawn", "forkserver")),
        "How processes are started. Default: fork on Linux, spawn elsewhere.",
    )  # fmt: skip
    start_seconds: float = option(
        "START_SECONDS", 120.0, seconds(1),
        "How long a process of a cluster may take to start, with the project's imports and the "
        "receivers of `post_spawn`, before it is killed and replaced. Raise it if they take "
        "minutes, for example to load a model.",
    )  # fmt: skip
    heartbeat_seconds: float = option(
        "HEARTBEAT_SECONDS", 5.0, seconds(0.1),
        "How often a cluster writes a heartbeat.",
    )  # fmt: skip
    upkeep_seconds: float = option(
        "UPKEEP_SECONDS", 10.0, seconds(0.1),
        "How often upkeep rescues, prunes and cleans. If pruning finds nothing, upkeep skips it "
        "the next five times. Under load, hot tables are vacuumed more often.",
    )  # fmt: skip
    unknown_task_grace_seconds: float = option(
        "UNKNOWN_TASK_GRACE_SECONDS", 600.0, seconds(0),
        "A cluster that does not know the task of a job, or its SECRET_KEY, releases the job for "
        "another cluster, as in a rolling deploy. This long after a cluster first could not run "
        "the job, the job becomes a dead letter instead.",
    )  # fmt: skip
    database_seconds: float = option(
        "DATABASE_SECONDS", 15.0, seconds(1),
        "The deadline of every call that the cluster's own processes make to the database. The "
        "server applies it, too; if PostgreSQL does not answer, the process closes the connection "
        "a second later. The processes wait for a locked row for a quarter of this time, at most a "
        "second. The server ends their transactions that are idle for this time, or for a third of "
        "a lease.",
    )  # fmt: skip
    reporters: tuple[NamedReporter, ...] = option(
        "REPORTERS", (), reporters,
        "Reporters of failures, runs and ticks: names (`sentry`, `rollbar`, `opentelemetry`, "
        "`prometheus`, `webhook`) or dotted paths; in a dict, each with its options, or with a "
        "list of options for several of the same kind.",
    )  # fmt: skip
    redact: tuple[str, ...] = option(
        "REDACT", SECRETS, names,
        "Names of parameters, and of keys in dicts, whose values pages, the API, commands and "
        "reporters hide: `api_key` also hides `stripe_api_key` and `apiKey`. They replace the "
        "default list; a task adds its own with `redact`. Default: `password`, `passwd`, "
        "`passphrase`, `secret`, `token`, `api_key`, `apikey`, `access_key`, `private_key`, "
        "`authorization`, `credentials`, `cookie`, `session_key`, `card_number`, `cvv`.",
    )  # fmt: skip
    sqlite_tuning: bool = option(
        "SQLITE_TUNING", True, flag,
        "On SQLite, open the queue's database, and others that have an outbox, in WAL mode with "
        "`BEGIN IMMEDIATE` and a busy time-out, unless `DATABASES` says otherwise: without these, "
        "several processes fail with 'database is locked'.",
    )  # fmt: skip

    database: str = field(init=False, hash=False)
    """Alias in ``DATABASES`` of the store, which holds jobs, results and dead letters."""
    results_cache: str | None = field(init=False, hash=False)
    """Alias of the cache that holds results; None = the store holds them."""
    keeps_successes: bool = field(init=False, hash=False)
    """Whether results of jobs that succeeded are kept at all."""

    def __post_init__(self) -> None:
        scheme, _, rest = self.broker.partition("://")
        database = rest.strip("/") or "default" if scheme == "orm" else self.store
        kept = self.keep_results
        object.__setattr__(self, "database", database)
        object.__setattr__(self, "results_cache", self.results.partition(":")[2] or None)
        object.__setattr__(
            self, "keeps_successes", kept.successful_seconds != 0 and kept.successful_count != 0
        )

    @property
    def most_workers(self) -> int:
        """Return the number of workers up to which a cluster can be resized."""
        return max(self.workers, self.max_workers or 2 * self.workers)

    @property
    def backend_option(self) -> str:
        """Return the option that a command needs to act on this backend, for messages."""
        return "" if self.alias == "default" else f" --backend {quote(self.alias)}"

    @property
    def shown_broker(self) -> str:
        """Return the URL in ``BROKER`` without user and passwords, for messages and screens."""
        head, at, rest = SECRET_OPTION.sub(r"\1...", self.broker).rpartition("@")
        return f"{head.partition('://')[0]}://{rest}" if at else rest

    def wrong_broker(self, error: Exception, example: str) -> ConfigurationError:
        """Return the error for a URL in ``BROKER`` that cannot be used.

        Args:
            error: the reason. A text that quotes a part of the URL is replaced, because that may be
                a part of the password.
            example: a correct URL.
        """
        why = str(error).rstrip(".")
        if _has_unescaped_login(SECRET_OPTION.sub("", self.broker)):
            why = "its user name or password has a character that must be escaped, as %23 for #"
        elif PARSED_NUMBER.match(why):
            why = "a port, or the number of a database, is not a number"
        where = f'TASKS["{self.alias}"]["OPTIONS"]["BROKER"]'
        return ConfigurationError(f"{where} cannot be used: {why}. Write {example}.")


SECRET_OPTION = re.compile(r"([?&]\w*password=)[^&]*", re.IGNORECASE)
PARSED_NUMBER = re.compile(r"Port\b|invalid literal")


def _has_unescaped_login(url: str) -> bool:
    """Return whether a parser of URLs would not find the user name and password that there are."""
    try:
        return "@" in url and "@" not in urlsplit(url).netloc
    except ValueError:
        return "@" in url


def option_fields() -> dict[str, Field[Any]]:
    """Return the options by their key under ``OPTIONS``, in the order of the documentation."""
    return fields_by_key(Settings)


@cache
def settings_for(alias: str = "default") -> Settings:
    """Return the checked settings of a backend.

    Raises:
        ConfigurationError: ``TASKS`` has no such backend, or an option is wrong.
    """
    configured = getattr(django_settings, "TASKS", None) or {}
    if alias not in configured:
        raise ConfigurationError(
            f"TASKS has no backend {alias!r}. Add to your settings: "
            f'TASKS = {{"{alias}": {{"BACKEND": "stoker.backend.StokerBackend"}}}}.'
        )
    return read_settings(alias, configured[alias])


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "TASKS":
        settings_for.cache_clear()


setting_changed.connect(_forget)


def read_settings(alias: str, params: Mapping[str, Any]) -> Settings:
    """Return the checked settings of one entry of ``TASKS``.

    Raises:
        ConfigurationError: an option is unknown or wrong; the message names the first one.
    """
    for problem in problems(alias, params):
        raise ConfigurationError(problem)
    return _assemble(alias, params)


def problems(alias: str, params: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each invalid option of this entry of ``TASKS``."""
    return problems_of(alias, params, option_fields())


def _assemble(alias: str, params: Mapping[str, Any]) -> Settings:
    checked = checked_options(params.get("OPTIONS", {}), option_fields())
    queues = tuple(sorted(params.get("QUEUES", ["default"])))
    return Settings(alias=alias, queues=queues, **checked)


ENTRY_KEYS = ("BACKEND", "QUEUES", "OPTIONS")
"""The keys of an entry of ``TASKS``."""


def problems_of(
    alias: str, params: Mapping[str, Any], known: Mapping[str, Field[Any]]
) -> list[str]:
    """Return one sentence for each invalid option.

    Args:
        alias: an alias in ``TASKS``.
        params: the entry of that alias.
        known: the known options by key.
    """
    found = []
    for key in params:
        if key not in ENTRY_KEYS:
            entry = f'TASKS["{alias}"]'
            found.append(f"{entry} has no key {key!r}.{suggestion(str(key), ENTRY_KEYS)}")
    if not are_queue_names(params.get("QUEUES", [])):
        found.append(
            f'TASKS["{alias}"]["QUEUES"] must be a list of names of up to 100 characters without '
            "NUL; an empty one allows any name."
        )
    where = f'TASKS["{alias}"]["OPTIONS"]'
    return found + option_problems(where, params.get("OPTIONS", {}), known)
