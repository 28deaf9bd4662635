"""``Q_CLUSTER`` turned into an entry of ``TASKS``, key by key; and what cannot be."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .broker_urls import SQS_CREDENTIALS, TRANSLATIONS, NotTranslated, broker_url

KEPT_SECONDS = 7 * 86400
CACHED_SECONDS = 86400
"""How long a result stays in the cache where ``cached`` is only True."""

OPTIONS = {
    "workers": "WORKERS",
    "recycle": "RECYCLE_JOBS",
    "timeout": "TIMEOUT",
    "retry": "BACKOFF",
    "poll": "POLL_SECONDS",
    "queue_limit": "PREFETCH",
    "scheduler": "SCHEDULER",
    "compress": "COMPRESS",
    "serializer": "SERIALIZER",
}
"""Keys whose value is that of an option."""
READ = (
    "name", "cluster_name", "ALT_CLUSTERS", "max_rss", "ack_failures", "max_attempts", "catch_up",
    "time_zone", "save_limit", "save_limit_per", "cached", "cache", "sync", "label", "log_level",
    "error_reporter",
)  # fmt: skip
"""Keys that have a meaning of their own."""
REPORTERS = ("rollbar", "sentry")
"""Of ``error_reporter``."""
NEEDLESS = {
    "bulk": "jobs are always claimed in batches, as many as workers can take",
    "guard_cycle": "the sentinel waits for events, and looks at the clock ten times a second",
    "daemonize_workers": "tasks may start processes of their own anyway",
    "testing": "it was for the tests of Django Q",
    "disque_fastack": "each job is acknowledged once, whatever the broker",
    "has_replica": "rows are read where they are written",
}
BROKERS = ("broker_class", "mongo_db", "disque_auth", *TRANSLATIONS)
UNTRANSLATED = {
    "cpu_affinity": "let systemd (CPUAffinity=), taskset or the container bind the processes",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be said about one key."""

    key: str
    sentence: str
    advice: str
    is_error: bool = True


def read_cluster(configured: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Q_CLUSTER as it is in force in this process.

    Args:
        name: the cluster of ALT_CLUSTERS; None = as the environment's Q_CLUSTER_NAME says.
    """
    name = os.environ.get("Q_CLUSTER_NAME") if name is None else name
    found = dict(configured)
    others = found.pop("ALT_CLUSTERS", None)
    if name:
        found["cluster_name"] = name
        if isinstance(others, Mapping) and isinstance(others.get(name), Mapping):
            found.update(others[name])
            found["cluster_name"] = name
    found.setdefault("name", "default")
    found.setdefault("cluster_name", found["name"])
    return found


def entry_of(configured: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of ``TASKS`` that Q_CLUSTER comes to."""
    given = read_cluster(configured)
    options: dict[str, Any] = {
        OPTIONS[key]: value
        for key, value in given.items()
        if key in OPTIONS and (value is not None or key == "timeout")
    }
    if "PREFETCH" in options and isinstance(options["PREFETCH"], int):
        options["PREFETCH"] = min(options["PREFETCH"], 10_000)
    options["CLUSTER"] = str(given["name"])
    try:
        options["BROKER"] = broker_url(given)
    except NotTranslated:  # `problems` tells of it
        options["BROKER"] = f"orm://{given.get('orm') or 'default'}"
    if given.get("max_rss"):
        options["RECYCLE_MEMORY_MB"] = max(1, -(-int(given["max_rss"]) // 1024))
    if given.get("ack_failures"):
        options["MAX_ATTEMPTS"] = 1
    elif given.get("max_attempts"):
        options["MAX_ATTEMPTS"] = given["max_attempts"]
    if not options.get("COMPRESS"):
        options.pop("COMPRESS", None)
    if reporters := _reporters(given.get("error_reporter")):
        options["REPORTERS"] = reporters
    options["KEEP_RESULTS"] = _retention(given.get("save_limit", 250))
    return {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": [], "OPTIONS": options}


def _reporters(given: Any) -> dict[str, Mapping[str, Any]]:
    """Those that there are under the same name, with the same options."""
    if not isinstance(given, Mapping):
        return {}
    return {
        name: options
        for name, options in given.items()
        if name in REPORTERS and isinstance(options, Mapping)
    }


def _retention(save_limit: Any) -> Any:
    if save_limit == 0:
        return True
    # Jobs are what waits and workflows are read from; what Django Q shows are its Task rows.
    count = max(save_limit, 1000) if isinstance(save_limit, int) else None
    return {"successful_seconds": KEPT_SECONDS, "successful_count": count, "failed_seconds": None}


def problems(configured: Any) -> Iterator[Problem]:
    """What cannot be taken over, or not as it was."""
    if not isinstance(configured, Mapping):
        yield Problem("", "Q_CLUSTER must be a dict.", "See the settings of Django Q.")
        return
    for cluster, given in _variants(configured):
        where = f'Q_CLUSTER["ALT_CLUSTERS"]["{cluster}"]' if cluster else "Q_CLUSTER"
        for key, value in given.items():
            yield from _problem(where, str(key), value)
        yield from _broker_problems(where, given, {**configured, **given})
    attempts = configured.get("max_attempts", 0)
    if attempts == 0 and "max_attempts" in configured and not configured.get("ack_failures"):
        yield Problem(
            "max_attempts",
            'Q_CLUSTER["max_attempts"] is 0, which meant for ever: Stoker tries 3 times, and then '
            "keeps the job as a dead letter, which can be sent again.",
            "Write how often a job is to be tried, up to 10000.",
            is_error=False,
        )


def _broker_problems(
    where: str, given: Mapping[str, Any], merged: Mapping[str, Any]
) -> Iterator[Problem]:
    """What is wrong with the broker that these settings name, or inherit."""
    if not any(given.get(key) for key in BROKERS):
        return
    try:
        url = broker_url(merged)
    except NotTranslated as problem:
        yield Problem(problem.key, f'{where}["{problem.key}"] {problem}.', problem.advice)
        return
    terms = merged.get("sqs")
    if url.startswith("sqs://") and isinstance(terms, Mapping) and {*terms} & {*SQS_CREDENTIALS}:
        yield Problem(
            "sqs",
            f'{where}["sqs"] has credentials, which are not read from there.',
            "Give them to AWS's own configuration: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in "
            "the environment, AWS_PROFILE, ~/.aws, or the role of the host.",
            is_error=False,
        )


def _variants(configured: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", configured
    others = configured.get("ALT_CLUSTERS") or {}
    for name, given in others.items() if isinstance(others, Mapping) else ():
        if isinstance(given, Mapping):
            yield str(name), given


def _problem(where: str, key: str, value: Any) -> Iterator[Problem]:
    known = (*OPTIONS, *READ, *NEEDLESS, *BROKERS, *UNTRANSLATED)
    if key in UNTRANSLATED and value:
        sentence = f'{where}["{key}"] has no effect.'
        yield Problem(key, sentence, f"Remove it: {UNTRANSLATED[key]}.", is_error=False)
    elif key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        advice = f"Did you mean {near[0]!r}?" if near else "Remove it."
        yield Problem(key, f'{where} has a key "{key}", which Django Q does not have.', advice)
    elif key in OPTIONS and value is not None:
        from stoker.conf import option_fields

        try:
            option_fields()[OPTIONS[key]].metadata["check"](value)
        except ValueError as error:
            if key == "queue_limit" or (key == "compress" and not value):
                return
            sentence = f'{where}["{key}"] is {value!r}, but it {error}.'
            yield Problem(key, sentence, f"It becomes the option {OPTIONS[key]}.")
    elif key in ("max_attempts", "save_limit", "max_rss") and not _is_whole_or_none(value):
        yield Problem(key, f'{where}["{key}"] is {value!r}, but must be a whole number.', "")
    elif key == "error_reporter" and value and {*value} != {*_reporters(value)}:
        yield Problem(
            key,
            f'{where}["error_reporter"] names a reporter that is not taken over: '
            f"{', '.join(repr(name) for name in value if name not in _reporters(value))}.",
            "Write one for Stoker (docs/howto/write-a-reporter.md), and name it in TASKS.",
            is_error=False,
        )
    elif key == "save_limit_per" and value not in (None, "group", "name", "func"):
        yield Problem(key, f'{where}["{key}"] must be "group", "name", "func" or None.', "")


def _is_whole_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
