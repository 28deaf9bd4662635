"""Brokers of ``Q_CLUSTER`` as the URL that the option ``BROKER`` takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from django.conf import settings as django_settings

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
"""Arguments of the Redis client for which Stoker has values of its own."""
REDIS_READ = {"host", "port", "db", "username", "password", "ssl", "unix_socket_path"}
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
    """A broker cannot be written as a URL, and why. ``key`` is that of Q_CLUSTER."""

    def __init__(self, key: str, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.key = key
        self.advice = advice


def broker_url(given: Mapping[str, Any]) -> str:
    """The broker that Django Q would use with these settings; with none of them, the database.

    Raises:
        NotTranslated: naming the key and saying what to write instead.
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
                f"has {key!r}, which cannot stand in a URL",
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
    scheme = "rediss" if terms.get("ssl") else "redis"
    host = f"{terms.get('host') or 'localhost'}:{terms.get('port') or REDIS_PORT}"
    query = urlencode({key: _plain(value) for key, value in secure.items() if value is not None})
    return f"{scheme}://{_login(terms)}{host}/{database}" + (f"?{query}" if query else "")


TRANSLATIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "disque_nodes": _disque,
    "iron_mq": _iron_mq,
    "sqs": _sqs,
    "orm": _orm,
    "mongo": _mongo,
    "django_redis": _django_redis,
    "redis": _redis,
}
"""In the order in which Django Q looks at them."""


def _login(terms: Mapping[str, Any]) -> str:
    user, password = (quote(str(terms.get(key) or ""), safe="") for key in ("username", "password"))
    if not user and not password:
        return ""
    return f"{user}:{password}@" if password else f"{user}@"


def _prefix(name: str) -> str:
    """The name of the cluster as SQS allows it in the names of queues."""
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
