"""``Q_CLUSTER``: translation into TASKS, checks and warnings."""

import ssl
import subprocess
import sys
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.test import override_settings
from django.utils import timezone
from redis import Redis

from stoker.brokers.adapters import broker_for
from stoker.conf import problems as problems_of_tasks
from stoker.conf import read_settings
from stoker.contrib.django_q.apps import check_q_cluster
from stoker.contrib.django_q.conf import Conf, logger
from stoker.contrib.django_q.exceptions import TimeoutException
from stoker.contrib.django_q.status import Stat
from stoker.contrib.django_q.translation import broker_url, entry_of, problems, read_cluster
from stoker.inspect.stats import ClusterState, ProcessState
from stoker.jobs.package import JobOptions, Package, sealer_for
from stoker.values.ids import new_job_id


def test_keys_become_options() -> None:
    given = {
        "name": "shop",
        "workers": 4,
        "recycle": 500,
        "max_rss": 100_001,
        "timeout": 90,
        "retry": 120,
        "max_attempts": 5,
        "poll": 0.5,
        "queue_limit": 50,
        "scheduler": False,
        "compress": True,
        "orm": "queue",
        "save_limit": 5000,
    }
    settings = read_settings("default", entry_of(given))
    assert settings.cluster == "shop"
    assert settings.queues == ()
    assert settings.broker == "orm://queue"
    assert (settings.workers, settings.recycle_jobs, settings.recycle_memory_mb) == (4, 500, 98)
    assert (settings.timeout_seconds, settings.max_attempts, settings.prefetch) == (90, 5, 50)
    assert (settings.poll_seconds, settings.scheduler) == (0.5, False)
    assert settings.compress_above_bytes
    assert settings.keep_results.successful_count == 5000
    assert settings.backoff == 120


def test_large_packages_are_accepted_as_in_django_q() -> None:
    settings = read_settings("default", entry_of({"orm": "default"}))
    numbers = [[number / 7] for number in range(60_000)]
    package = Package(new_job_id(), "math.floor", (numbers,), {}, "shop", 0, 0.0, JobOptions())
    assert sealer_for(settings).seal(package)
    given = {"max_package_bytes": 300}
    assert read_settings("default", entry_of(given)).max_package_bytes == 300
    assert not list(problems(given))
    (problem,) = problems({"max_package_bytes": "many"})
    assert "MAX_PACKAGE_BYTES" in problem.advice


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"timeout": None, "retry": 60, "ack_failures": True, "compress": False, "max_rss": None},
        {"save_limit": 0},
        {"save_limit": -1, "queue_limit": 100_000, "max_attempts": 0},
        {"name": "a name", "workers": None, "redis": {"host": "localhost"}, "bulk": 10},
    ],
    ids=str,
)
def test_usual_settings_are_valid(given: dict[str, Any]) -> None:
    entry = entry_of(given)
    assert not problems_of_tasks("default", entry)
    assert read_settings("default", entry).workers


@pytest.mark.parametrize(
    ("given", "attempts"),
    [
        ({}, 1),  # Django Q's default is Redis
        ({"redis": {"host": "localhost"}}, 1),
        ({"django_redis": "default"}, 1),
        ({"redis": "redis://localhost", "max_attempts": 0}, 1),
        ({"redis": "redis://localhost", "max_attempts": 5}, 5),
        ({"disque_nodes": ["localhost"]}, 3),
        ({"orm": "default"}, 3),
        ({"orm": "default", "redis": {"host": "localhost"}}, 3),  # "orm" takes precedence
        ({"orm": "default", "ack_failures": True}, 1),
    ],
    ids=str,
)
def test_failed_task_runs_again_only_if_django_q_runs_it_again(
    given: dict[str, Any], attempts: int
) -> None:
    assert read_settings("default", entry_of(given)).max_attempts == attempts
    warned = [one for one in problems(given) if one.key == "max_attempts"]
    assert not warned


def test_alternative_cluster_overrides_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"name": "long", "cluster_name": "longer"}  # Django Q ignores them there
    others = {"long": {"workers": 1, "timeout": 600, **names}, "shop": {"workers": 2}}
    given = {"name": "shop", "workers": 4, "ALT_CLUSTERS": others}
    assert read_cluster(given)["cluster_name"] == "shop"
    monkeypatch.setenv("Q_CLUSTER_NAME", "long")
    of_long = read_cluster(given)
    assert (of_long["name"], of_long["cluster_name"]) == ("shop", "long")
    assert (of_long["workers"], of_long["timeout"]) == (1, 600)
    assert entry_of(given)["OPTIONS"]["CLUSTER"] == "shop"  # the salt of its signatures
    monkeypatch.setenv("Q_CLUSTER_NAME", "shop")
    assert read_cluster(given)["workers"] == 4
    monkeypatch.setenv("Q_CLUSTER_NAME", "unheard")
    assert read_cluster(given)["cluster_name"] == "unheard"


@pytest.mark.parametrize(
    ("given", "key", "part"),
    [
        ({"redis": {"hots": "x"}}, "redis", "Remove 'hots'"),
        ({"iron_mq": {"project_id": "x"}}, "iron_mq", "Write both there"),
        ({"django_redis": "nowhere"}, "django_redis", '"redis": "redis://'),
        ({"disque_nodes": "localhost:7711"}, "disque_nodes", "['HOST:PORT', ...]"),
        ({"broker_class": "a.Broker", "orm": "default"}, "broker_class", "Remove"),
        ({"wrokers": 4}, "wrokers", "Did you mean 'workers'?"),
        ({"workers": "four"}, "workers", "WORKERS"),
        ({"timeout": -1}, "timeout", "TIMEOUT"),
        ({"save_limit": "many"}, "save_limit", ""),
        ({"save_limit_per": "task"}, "save_limit_per", ""),
        ({"ALT_CLUSTERS": {"x": {"mongo": 7}}}, "mongo", "settings of Django Q"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_unsupported_setting_is_an_error(given: Any, key: str, part: str) -> None:
    (problem,) = problems(given)
    assert problem.key == key
    assert problem.is_error
    assert part in problem.advice


CACHED = {"jobs": {"LOCATION": ["redis://a:6379/3", "redis://b:6379/3"]}}
BROKERS: list[tuple[dict[str, Any], str]] = [
    ({}, "orm://default"),
    ({"orm": "queue"}, "orm://queue"),
    ({"redis": "rediss://alice:pass@host:6380/2"}, "rediss://alice:pass@host:6380/2"),
    ({"redis": {"host": "cache"}}, "redis://cache:6379/0"),
    (
        {"redis": {"host": "h", "port": 6380, "db": 2, "password": "p@ss/", "socket_timeout": 3}},
        "redis://:p%40ss%2F@h:6380/2",
    ),
    (
        {"redis": {"username": "alice", "password": "x", "ssl": True, "ssl_ca_certs": "/ca.pem"}},
        "rediss://alice:x@localhost:6379/0?ssl_ca_certs=%2Fca.pem",
    ),
    ({"redis": {"unix_socket_path": "/run/redis.sock"}}, "unix:///run/redis.sock?db=0"),
    ({"django_redis": "jobs"}, "redis://a:6379/3"),
    ({"sqs": {"aws_region": "eu-west-1"}}, "sqs://eu-west-1/shop"),
    ({"name": "my shop", "sqs": {"aws_region": "x"}}, "sqs://x/my-shop-21e023186c"),
    ({"mongo": "mongodb://db/jobs"}, "mongodb://db/jobs"),
    ({"mongo": {"host": "mongodb://db"}, "mongo_db": "jobs"}, "mongodb://db/jobs"),
    ({"mongo": {"host": "db"}}, "mongodb://db:27017/django-q"),
    (
        {"mongo": {"host": ["a", "b:1"], "username": "u", "password": "p", "authSource": "admin"}},
        "mongodb://u:p@a:27017,b:1/django-q?authSource=admin",
    ),
    (
        {"iron_mq": {"project_id": "p", "token": "t"}},
        "ironmq://p:t@mq-aws-us-east-1-1.iron.io",
    ),
    (
        {"iron_mq": {"host": "h", "port": 80, "protocol": "http", "project_id": "p", "token": "t"}},
        "ironmq://p:t@h:80?tls=false",
    ),
    (
        {"disque_nodes": ["a:7711", "b"], "disque_auth": "secret", "disque_fastack": True},
        "disque://:secret@a:7711,b:7711",
    ),
    ({"orm": "default", "redis": {"host": "x"}, "mongo": "mongodb://db"}, "orm://default"),
    ({"orm": "default", "sqs": {"aws_region": "x"}}, "sqs://x/shop"),
]


@pytest.mark.parametrize(("given", "url"), BROKERS, ids=[url for _, url in BROKERS])
@override_settings(CACHES=CACHED)
def test_broker_settings_become_a_url(given: dict[str, Any], url: str) -> None:
    given = {"name": "shop", **given}
    entry = entry_of(given)
    assert entry["OPTIONS"]["BROKER"] == url
    assert not list(problems(given))
    assert not problems_of_tasks("default", entry)
    if not url.startswith("orm://"):  # a broker connects at its first use
        broker_for(read_settings("default", entry)).close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ssl.CERT_REQUIRED),
        ({"ssl_cert_reqs": None}, ssl.CERT_NONE),
        ({"ssl_cert_reqs": "none"}, ssl.CERT_NONE),
        ({"ssl_cert_reqs": ssl.CERT_NONE}, ssl.CERT_NONE),
        ({"ssl_cert_reqs": ssl.CERT_OPTIONAL}, ssl.CERT_OPTIONAL),
        ({"ssl_cert_reqs": ssl.CERT_REQUIRED}, ssl.CERT_REQUIRED),
    ],
    ids=str,
)
def test_certificate_of_redis_is_checked_as_configured(
    given: dict[str, Any], expected: ssl.VerifyMode
) -> None:
    url = broker_url({"redis": {"host": "h", "ssl": True, **given}})
    assert Redis.from_url(url).connection_pool.make_connection().cert_reqs == expected
    without_tls = broker_url({"redis": {"host": "h", "ssl": False, **given}})
    assert without_tls == "redis://h:6379/0"


def test_sqs_credentials_cause_a_warning() -> None:
    keys = {"aws_region": "x", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    (problem,) = problems({"sqs": keys})
    assert not problem.is_error
    assert "AWS_ACCESS_KEY_ID" in problem.advice
    assert "secret" not in entry_of({"sqs": keys})["OPTIONS"]["BROKER"]


def test_ineffective_setting_is_a_warning() -> None:
    given = {"cpu_affinity": 1, "error_reporter": {"pager": {}}, "max_attempts": 0}
    found = problems({**given, "orm": "default"})
    assert [one.key for one in found if not one.is_error] == [*given]
    assert not list(problems({"orm": "default", "redis": {"host": "x"}, "bulk": 5}))


def test_error_reporters_become_reporters() -> None:
    keys = {"dsn": "https://key@sentry.example/1"}
    given = {"error_reporter": {"sentry": keys, "rollbar": {"access_token": "x"}, "pager": {}}}
    options = entry_of(given)["OPTIONS"]
    assert options["REPORTERS"] == {"sentry": keys, "rollbar": {"access_token": "x"}}
    assert read_settings("default", entry_of(given)).reporters[0].options == keys
    (problem,) = problems(given)
    assert "'pager'" in problem.sentence
    assert not list(problems({"error_reporter": {"sentry": keys}}))


def test_check_reports_invalid_settings() -> None:
    with override_settings(Q_CLUSTER={"wrokers": 3}):
        found: list[CheckMessage] = check_q_cluster()
    assert [message.id for message in found] == ["django_q.E001"]
    with override_settings(Q_CLUSTER="four"):
        assert "must be a dict" in check_q_cluster()[0].msg


PROJECT = """
import importlib.util
from django.conf import settings
own = ["django_tasks"] if importlib.util.find_spec("django.tasks") is None else []
settings.configure(
    SECRET_KEY="x",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", *own, APPS],
    Q_CLUSTER={"name": "shop", "workers": 3},
    MORE
)
import django
django.setup()
from django.core.management import call_command
from stoker.contrib.django_q import conf
"""


BOTH = '"stoker", "stoker.contrib.django_q"'


def in_a_project(code: str, more: str = "", apps: str = BOTH) -> str:
    program = PROJECT.replace("APPS]", f"{apps}]").replace("MORE", more) + code
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


TELL = "print(conf.alias(), conf.settings().workers, conf.settings().cluster, conf.queue())"


def test_backend_is_added_if_tasks_is_not_set() -> None:
    assert in_a_project(TELL).strip() == "default 3 shop shop"


def test_backend_is_added_beside_a_foreign_backend() -> None:
    dummy = "django_tasks" if sys.version_info < (3, 12) else "django.tasks"
    more = f'TASKS={{"default": {{"BACKEND": "{dummy}.backends.dummy.DummyBackend"}}}},'
    assert in_a_project(TELL, more).strip() == "django_q 3 shop shop"


def test_existing_stoker_backend_is_used() -> None:
    more = (
        'TASKS={"default": {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": ["one"], '
        '"OPTIONS": {"WORKERS": 7}}},'
    )
    assert in_a_project(TELL, more).strip() == "default 7 stoker one"


def test_check_asks_for_the_stoker_app() -> None:
    told = in_a_project('call_command("check")', apps='"stoker.contrib.django_q"')
    assert "but 'stoker' is not: add it there, and run manage.py migrate." in told


@override_settings(Q_CLUSTER={"workers": 3, "retry": 90})
def test_conf_has_django_qs_names() -> None:
    assert (Conf.RETRY, Conf.TIMEOUT, Conf.RECYCLE, Conf.MAX_ATTEMPTS) == (90, None, 500, 0)
    assert Conf.QUEUE_LIMIT == Conf.WORKERS**2
    with pytest.raises(AttributeError, match=r"Conf has no SQS. Read it from settings.Q_CLUSTER"):
        _ = Conf.SQS
    assert logger.name == "stoker"
    assert issubclass(TimeoutException, TimeoutError)


@pytest.mark.parametrize(
    ("roles", "pids"),
    [
        (("sentinel", "pusher", "monitor"), (1, 2, 3)),
        (("sentinel", "core"), (1, 2, 2)),
        ((), (1, 0, 0)),
    ],
)
def test_stat_names_the_processes(
    roles: tuple[str, ...], pids: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = tuple(ProcessState(role, place + 1, 0) for place, role in enumerate(roles))
    state = ClusterState(
        "id", "shop", "host", 1, "running", "", timezone.now(), 0, (), 0, (), processes=processes
    )
    monkeypatch.setattr("stoker.contrib.django_q.status.clusters", lambda _: [state])
    (stat,) = Stat.get_all()
    assert (stat.sentinel, stat.pusher, stat.monitor) == pids
    assert (stat.reincarnations, stat.done_q_size) == (0, 0)
