"""Translate ``Q_CLUSTER`` to an entry of ``TASKS``, and find settings that cannot be translated."""

from __future__ import annotations

import difflib
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from django.conf import settings as django_settings

from stoker.conf import option_fields

IRON_HOST = "mq-aws-us-east-1-1.iron.io"
DISQUE_PORT, REDIS_PORT, MONGO_PORT = 7711, 6379, 27017
MONGO_DATABASE = "django-q"
LONGEST_PREFIX = 40

REDIS_OWN = {
    "charset", "client_name", "connection_pool", "decode_responses", "encoding", "encoding_errors",
    "errors", "health_check_interval", "max_connections", "protocol", "retry", "retry_on_error",
    "retry_on_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options",
    "socket_read_size", "socket_timeout", "socket_type",
}  # fmt: skip
"""Arguments of the Redis client that Stoker sets itself."""
REDIS_READ = {"host", "port", "db", "username", "password", "ssl", "unix_socket_path"}
CERT_REQS = {
    None: "none",
    ssl.CERT_NONE: "none",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_REQUIRED: "required",
}
"""``ssl_cert_reqs`` of the Redis client -> its text in a URL."""
MONGO_READ = {"host", "port", "username", "password"}
IRON_READ = {"host", "port", "protocol", "project_id", "token", "api_version"}
SQS_READ = {"aws_region", "endpoint_url", "receive_message_wait_time_seconds"}
SQS_CREDENTIALS = (
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "profile_name",
)


class NotTranslated(ValueError):
    """A broker's settings cannot be written as a URL; the message says why. ``key`` is the key in
    Q_CLUSTER."""

    def __init__(self, key: str, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.key = key
        self.advice = advice


def broker_url(given: Mapping[str, Any]) -> str:
    """Return the URL of the broker that Django Q would use; by default the database.

    Raises:
        NotTranslated: the error names the key, and says what to write instead.
    """
    if given.get("broker_class"):
        raise NotTranslated(
            "broker_class",
            "names a class of Django Q's, which does not run here",
            'Remove "broker_class", and write "orm": "default" (an alias of DATABASES), another '
            "broker, or name a BROKER of Stoker's in TASKS.",
        )
    for key, translate in TRANSLATIONS.items():
        if given.get(key):
            return translate(given)
    return "orm://default"


def _disque(given: Mapping[str, Any]) -> str:
    nodes = _texts("disque_nodes", given["disque_nodes"])
    password = given.get("disque_auth")
    login = f":{quote(str(password), safe='')}@" if password else ""
    hosts = ",".join(one if ":" in one else f"{one}:{DISQUE_PORT}" for one in nodes)
    return f"disque://{login}{hosts}"


def _iron_mq(given: Mapping[str, Any]) -> str:
    terms = _dict("iron_mq", given["iron_mq"])
    _refuse_unknown("iron_mq", terms, IRON_READ)
    if not (terms.get("project_id") and terms.get("token")):
        raise NotTranslated(
            "iron_mq",
            'has no "project_id" or no "token"',
            "Write both there; ~/.iron.json and the variables IRON_... are not read.",
        )
    login = f"{quote(str(terms['project_id']), safe='')}:{quote(str(terms['token']), safe='')}"
    host = str(terms.get("host") or IRON_HOST)
    port = f":{terms['port']}" if terms.get("port") not in (None, 443) else ""
    end = "?tls=false" if terms.get("protocol") == "http" else ""
    return f"ironmq://{login}@{host}{port}{end}"


def _sqs(given: Mapping[str, Any]) -> str:
    terms = _dict("sqs", given["sqs"])
    _refuse_unknown("sqs", terms, {*SQS_READ, *SQS_CREDENTIALS})
    endpoint = terms.get("endpoint_url")
    end = f"?{urlencode({'endpoint': endpoint})}" if endpoint else ""
    return (
        f"sqs://{terms.get('aws_region') or ''}/{_prefix(str(given.get('name', 'default')))}{end}"
    )


def _orm(given: Mapping[str, Any]) -> str:
    return f"orm://{given['orm']}"


def _mongo(given: Mapping[str, Any]) -> str:
    found = given["mongo"]
    terms = {"host": found} if isinstance(found, str) else _dict("mongo", found)
    hosts = terms.get("host") or "localhost"
    database = str(given.get("mongo_db") or "")
    options = {key: value for key, value in terms.items() if key not in MONGO_READ}
    for key, value in options.items():
        if not isinstance(value, str | int | float):
            raise NotTranslated(
                "mongo",
                f"has {key!r}, which cannot be part of a URL",
                "Name a BROKER of Stoker's in TASKS.",
            )
    end = urlencode({key: _plain(value) for key, value in options.items()})
    if isinstance(hosts, str) and "://" in hosts:
        parts = urlsplit(hosts)
        path = f"/{database}" if database else parts.path
        path = path if path.strip("/") else f"/{MONGO_DATABASE}"
        query = "&".join(part for part in (parts.query, end) if part)
        netloc = parts.netloc if "@" in parts.netloc else f"{_login(terms)}{parts.netloc}"
        return urlunsplit((parts.scheme, netloc, path, query, ""))
    port = terms.get("port") or MONGO_PORT
    named = [hosts] if isinstance(hosts, str) else _texts("mongo", hosts)
    netloc = ",".join(one if ":" in one else f"{one}:{port}" for one in named)
    query = f"?{end}" if end else ""
    return f"mongodb://{_login(terms)}{netloc}/{database or MONGO_DATABASE}{query}"


def _django_redis(given: Mapping[str, Any]) -> str:
    alias = str(given["django_redis"])
    location = django_settings.CACHES.get(alias, {}).get("LOCATION")
    urls = [location] if isinstance(location, str) else list(location or ())
    if not urls or not str(urls[0]).startswith(("redis://", "rediss://", "unix://")):
        raise NotTranslated(
            "django_redis",
            f"is {alias!r}, and CACHES has no cache of that name with a Redis URL as LOCATION",
            'Write "redis": "redis://HOST:PORT/DATABASE" instead.',
        )
    return str(urls[0])


def _redis(given: Mapping[str, Any]) -> str:
    found = given["redis"]
    if isinstance(found, str):
        return found
    terms = _dict("redis", found)
    secure = {key: value for key, value in terms.items() if key.startswith("ssl_")}
    _refuse_unknown("redis", terms, {*REDIS_READ, *REDIS_OWN, *secure})
    database = int(terms.get("db") or 0)
    if path := terms.get("unix_socket_path"):
        return f"unix://{_login(terms)}{quote(str(path))}?db={database}"
    host = f"{terms.get('host') or 'localhost'}:{terms.get('port') or REDIS_PORT}"
    if not terms.get("ssl"):
        return f"redis://{_login(terms)}{host}/{database}"
    if "ssl_cert_reqs" in secure:
        secure["ssl_cert_reqs"] = CERT_REQS.get(secure["ssl_cert_reqs"], secure["ssl_cert_reqs"])
    query = urlencode({key: _plain(value) for key, value in secure.items() if value is not None})
    return f"rediss://{_login(terms)}{host}/{database}" + (f"?{query}" if query else "")


TRANSLATIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "disque_nodes": _disque,
    "iron_mq": _iron_mq,
    "sqs": _sqs,
    "orm": _orm,
    "mongo": _mongo,
    "django_redis": _django_redis,
    "redis": _redis,
}
"""Key of Q_CLUSTER -> function that returns the broker's URL, in Django Q's order of precedence."""


def _runs_failures_again(given: Mapping[str, Any]) -> bool:
    """Return whether Django Q would run a failed task again with this broker.

    It would not with Redis, its default: there a message is gone when a cluster has read it.
    """
    if given.get("broker_class"):
        return True
    broker = next((key for key in TRANSLATIONS if given.get(key)), "redis")
    return broker not in ("redis", "django_redis")


def _login(terms: Mapping[str, Any]) -> str:
    user, password = (quote(str(terms.get(key) or ""), safe="") for key in ("username", "password"))
    if not user and not password:
        return ""
    return f"{user}:{password}@" if password else f"{user}@"


def _prefix(name: str) -> str:
    """Return the cluster's name with the characters that SQS allows in names of queues."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)
    if plain == name and len(name) <= LONGEST_PREFIX:
        return name
    return f"{plain[: LONGEST_PREFIX - 11]}-{sha256(name.encode()).hexdigest()[:10]}"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dict(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise NotTranslated(
            key, f"is {value!r}, but must be a dict", "See the settings of Django Q."
        )
    return dict(value)


def _texts(key: str, value: Any) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise NotTranslated(key, f"is {value!r}, but must be a list", "Write ['HOST:PORT', ...].")
    return [str(one) for one in value]


def _refuse_unknown(key: str, terms: Mapping[str, Any], known: set[str]) -> None:
    if unknown := set(terms) - known:
        raise NotTranslated(
            key,
            f"has {min(unknown)!r}, which is not translated",
            f"Remove {min(unknown)!r}, or name a BROKER of Stoker's in TASKS.",
        )


KEPT_SECONDS = 7 * 86400
MAX_PACKAGE_BYTES = 16 << 20
"""Django Q has no limit. An ``async_iter`` of 60,000 numbers needs more than 1 MiB."""
CACHED_SECONDS = 86400
"""How long a result is cached if ``cached`` is True."""

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
    "max_package_bytes": "MAX_PACKAGE_BYTES",
}
"""Key of Q_CLUSTER -> option of Stoker with the same value."""
READ = (
    "name", "cluster_name", "ALT_CLUSTERS", "max_rss", "ack_failures", "max_attempts", "catch_up",
    "time_zone", "save_limit", "save_limit_per", "cached", "cache", "sync", "label", "log_level",
    "error_reporter",
)  # fmt: skip
"""Keys that are translated one by one, not copied."""
REPORTERS = ("rollbar", "sentry")
"""Known values of ``error_reporter``."""
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
class SettingProblem:
    """A problem with one key of Q_CLUSTER."""

    key: str
    sentence: str
    advice: str
    is_error: bool = True


def read_cluster(configured: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Return the settings of one cluster: the common ones, or those changed by ALT_CLUSTERS.

    Args:
        name: the cluster; "" = the main one; None = the one that the environment names in
            Q_CLUSTER_NAME, or else the main one.
    """
    if name is None:
        name = os.environ.get("Q_CLUSTER_NAME")
    found = dict(configured)
    others = found.pop("ALT_CLUSTERS", None)
    found.setdefault("name", "default")
    found.setdefault("cluster_name", found["name"])
    if name and name not in (found["name"], found["cluster_name"]):
        changed = others.get(name) if isinstance(others, Mapping) else None
        if isinstance(changed, Mapping):
            # All clusters have the same name, because it is the salt of their signatures.
            found |= {key: value for key, value in changed.items() if key != "name"}
    if name:
        found["cluster_name"] = name
    return found


def entry_of(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of ``TASKS`` for Q_CLUSTER."""
    given = read_cluster(configured)
    options: dict[str, Any] = {
        OPTIONS[key]: value
        for key, value in given.items()
        if key in OPTIONS and (value is not None or key == "timeout")
    }
    if "PREFETCH" in options and isinstance(options["PREFETCH"], int):
        options["PREFETCH"] = min(options["PREFETCH"], 10_000)
    options.setdefault("MAX_PACKAGE_BYTES", MAX_PACKAGE_BYTES)
    options["CLUSTER"] = str(given["name"])
    try:
        options["BROKER"] = broker_url(given)
    except NotTranslated:  # `problems` tells of it
        options["BROKER"] = f"orm://{given.get('orm') or 'default'}"
    if given.get("max_rss"):
        options["RECYCLE_MEMORY_MB"] = max(1, -(-int(given["max_rss"]) // 1024))
    if attempts := max_attempts(given):
        options["MAX_ATTEMPTS"] = attempts
    if not options.get("COMPRESS"):
        options.pop("COMPRESS", None)
    if reporters := _reporters(given.get("error_reporter")):
        options["REPORTERS"] = reporters
    options["KEEP_RESULTS"] = _retention(given.get("save_limit", 250))
    return {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": [], "OPTIONS": options}


def max_attempts(given: Mapping[str, Any]) -> int | None:
    """Return the number of attempts in the cluster with these settings; None = Stoker's default."""
    if given.get("ack_failures"):
        return 1
    if given.get("max_attempts"):
        return int(given["max_attempts"])
    return None if _runs_failures_again(given) else 1  # its tasks may not be safe to repeat


def _reporters(given: Any) -> dict[str, Mapping[str, Any]]:
    """Return the reporters that Stoker has under the same name, with their options."""
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
    # Waits and workflows read the rows of jobs. Django Q's pages show rows of Task instead.
    count = max(save_limit, 1000) if isinstance(save_limit, int) else None
    return {"successful_seconds": KEPT_SECONDS, "successful_count": count, "failed_seconds": None}


def problems(configured: Any) -> Iterator[SettingProblem]:
    """Yield the problems of keys that cannot be translated or that have another meaning in
    Stoker."""
    if not isinstance(configured, Mapping):
        yield SettingProblem("", "Q_CLUSTER must be a dict.", "See the settings of Django Q.")
        return
    for cluster, given in _variants(configured):
        where = f'Q_CLUSTER["ALT_CLUSTERS"]["{cluster}"]' if cluster else "Q_CLUSTER"
        for key, value in given.items():
            yield from _problem(where, str(key), value)
        yield from _broker_problems(where, given, {**configured, **given})
    is_unlimited = configured.get("max_attempts") == 0 and not configured.get("ack_failures")
    if is_unlimited and _runs_failures_again(configured):
        yield SettingProblem(
            "max_attempts",
            'Q_CLUSTER["max_attempts"] is 0, which means no limit in Django Q: Stoker tries 3 '
            "times, and then keeps the job as a dead letter, which can be requeued.",
            "Write the maximum number of attempts, up to 10000.",
            is_error=False,
        )


def _broker_problems(
    where: str, given: Mapping[str, Any], merged: Mapping[str, Any]
) -> Iterator[SettingProblem]:
    """Yield the problems with the broker in these settings, which may be inherited."""
    if not any(given.get(key) for key in BROKERS):
        return
    try:
        url = broker_url(merged)
    except NotTranslated as problem:
        yield SettingProblem(problem.key, f'{where}["{problem.key}"] {problem}.', problem.advice)
        return
    terms = merged.get("sqs")
    if url.startswith("sqs://") and isinstance(terms, Mapping) and {*terms} & {*SQS_CREDENTIALS}:
        yield SettingProblem(
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


def _problem(where: str, key: str, value: Any) -> Iterator[SettingProblem]:
    known = (*OPTIONS, *READ, *NEEDLESS, *BROKERS, *UNTRANSLATED)
    if key in UNTRANSLATED and value:
        sentence = f'{where}["{key}"] has no effect.'
        yield SettingProblem(key, sentence, f"Remove it: {UNTRANSLATED[key]}.", is_error=False)
    elif key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        advice = f"Did you mean {near[0]!r}?" if near else "Remove it."
        yield SettingProblem(
            key, f'{where} has a key "{key}", which Django Q does not have.', advice
        )
    elif key in OPTIONS and value is not None:
        try:
            option_fields()[OPTIONS[key]].metadata["check"](value)
        except ValueError as error:
            if key == "queue_limit" or (key == "compress" and not value):
                return
            sentence = f'{where}["{key}"] is {value!r}, but it {error}.'
            yield SettingProblem(key, sentence, f"It becomes the option {OPTIONS[key]}.")
    elif key in ("max_attempts", "save_limit", "max_rss") and not _is_whole_or_none(value):
        yield SettingProblem(key, f'{where}["{key}"] is {value!r}, but must be a whole number.', "")
    elif key == "error_reporter" and value and {*value} != {*_reporters(value)}:
        yield SettingProblem(
            key,
            f'{where}["error_reporter"] names a reporter that is not taken over: '
            f"{', '.join(repr(name) for name in value if name not in _reporters(value))}.",
            "Write one for Stoker (docs/howto/write-a-reporter.md), and name it in TASKS.",
            is_error=False,
        )
    elif key == "save_limit_per" and value not in (None, "group", "name", "func"):
        yield SettingProblem(key, f'{where}["{key}"] must be "group", "name", "func" or None.', "")


def _is_whole_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
