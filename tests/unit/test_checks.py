"""``manage.py check``: each id has a case that reports it and one that does not."""

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from django.conf import settings
from django.core import checks
from django.core.checks.registry import registry
from django.db import connections
from django.test import override_settings

from stoker import Cron, every
from stoker import backend as backend_module
from stoker import checks as ours
from stoker.brokers.adapters import ADAPTERS, ALONE, adapter_for, name_of
from stoker.compat import TASKS_APP, task_backends
from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.reporters import desk
from stoker.setting_values import api_settings
from stoker.tasks.registry import import_tasks_or_log, tasks_of_apps

from tests.app import tasks
from tests.integration.work import another_database

pytestmark = pytest.mark.unit

BACKEND = "stoker.backend.StokerBackend"
ROOT = Path(__file__).resolve().parents[2]


def ids(**tasks: dict[str, Any]) -> list[str]:
    with override_settings(
        TASKS={name: {"BACKEND": BACKEND, **more} for name, more in tasks.items()}
    ):
        return [message.id for backend in task_backends.all() for message in backend.check()]


def messages(**options: Any) -> list[checks.CheckMessage]:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        return task_backends["default"].check()


def test_default_settings_pass_all_checks() -> None:
    assert ids(default={}) == []


def test_every_check_id_is_documented() -> None:
    told = set(re.findall(r"stoker\.[EW]\d{3}", ours.__doc__ or ""))
    code = "".join(inspect.getsource(module) for module in (ours, desk, backend_module))
    used = set(re.findall(r'id="(stoker\.[EW]\d{3})"', code))
    assert used == told


def test_every_check_message_has_a_hint() -> None:
    found = messages(WORKERS="many", NO_SUCH=1)
    assert len(found) == 2
    assert all(message.hint for message in found)


@pytest.mark.parametrize("scheme", sorted(ADAPTERS.keys() - ALONE))
def test_every_broker_is_documented(scheme: str) -> None:
    name = name_of(scheme)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert name in extras["optional-dependencies"], "add the driver to pyproject.toml"
    assert (ROOT / f"docs/howto/use-{name}.md").is_file(), "write its page, see name_of"
    assert f"`{scheme}://" in Settings.__dataclass_fields__["broker"].metadata["doc"]
    assert f"`{scheme}://`" in (ROOT / "README.md").read_text(), "add it to the table of brokers"


def test_hint_of_a_broken_broker_names_its_page() -> None:
    (message,) = messages(BROKER="rediss://host:port/0")
    assert message.hint == "See docs/howto/use-redis.md."


def test_e001_reports_each_wrong_option() -> None:
    assert ids(default={"OPTIONS": {"WORKERS": "many", "WORKRES": 2}}) == ["stoker.E001"] * 2
    assert "Did you mean 'WORKERS'" in messages(WORKRES=2)[0].msg


def test_e001_reports_wrong_queues() -> None:
    assert ids(default={"QUEUES": "default"}) == ["stoker.E001"]
    for name in ("x" * 101, "a\0b", ""):
        assert ids(default={"QUEUES": [name]}) == ["stoker.E001"]
    assert ids(default={"QUEUES": []}) == []


def test_e002_reports_an_unknown_broker() -> None:
    assert ids(default={"OPTIONS": {"BROKER": "carrier-pigeon://loft"}}) == ["stoker.E002"]
    assert ids(default={"OPTIONS": {"BROKER": "memory://"}}) == []


def test_e003_reports_an_unknown_database() -> None:
    assert ids(default={"OPTIONS": {"BROKER": "orm://nowhere"}}) == ["stoker.E003"]


def test_e002_reports_an_invalid_broker_url() -> None:
    assert ids(default={"OPTIONS": {"BROKER": "redis://host:port/0"}}) == ["stoker.E002"]
    assert ids(default={"OPTIONS": {"BROKER": "redis://127.0.0.1:1/0"}}) == []


@pytest.mark.parametrize(
    "between", ["#", "[", "/", ":", "@", "?", "%", "\N{ADDRESSED TO THE SUBJECT}"]
)
@pytest.mark.parametrize(
    "scheme", ["redis", "redis+sentinel", "mongodb", "disque", "ironmq", "sqs", "rabbit"]
)
def test_messages_show_no_part_of_a_password(scheme: str, between: str) -> None:
    url = f"{scheme}://me:blue{between}whale@127.0.0.1:1/1"
    backends = {
        name: {"BACKEND": BACKEND, "OPTIONS": {"BROKER": url, "DATABASE": name}}
        for name in ("default", "second")
    }
    with override_settings(TASKS=backends):
        told = [f"{one.msg} {one.hint}" for one in task_backends["second"].check()]
    try:
        adapter_for(Settings(broker=url)).close()
    except ConfigurationError as error:
        told += format_exception(error)
    assert told
    assert not [one for one in told if "blue" in one or "whale" in one]


@pytest.mark.parametrize("url", ["ironmq://project:whale", "disque://:whale", "redis://:whale"])
def test_password_without_a_host_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        adapter_for(Settings(broker=url)).close()
    assert "whale" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h/0", "redis://h/0"),
        ("redis+sentinel://a:b@h:1,i:2/m", "redis+sentinel://h:1,i:2/m"),
        (
            "redis+sentinel://a:b@h/m?sentinel_password=c&db=1",
            "redis+sentinel://h/m?sentinel_password=...&db=1",
        ),
        ("unix:///s?password=p@q", "unix:///s?password=..."),
        (
            "mongodb://a:b#c@h/db?tlsCertificateKeyFilePassword=d",
            "mongodb://h/db?tlsCertificateKeyFilePassword=...",
        ),
        ("mongodb://a:b[c@h,i/db", "mongodb://h,i/db"),
    ],
)
def test_broker_is_shown_without_passwords(url: str, shown: str) -> None:
    assert Settings(broker=url).shown_broker == shown


def test_e003_reports_an_unknown_store() -> None:
    options = {"BROKER": "redis://127.0.0.1:1/0", "DATABASE": "nowhere"}
    assert ids(default={"OPTIONS": options}) == ["stoker.E003"]


@pytest.mark.parametrize(
    ("options", "is_ignored"),
    [
        ({"DATABASE": "other"}, True),
        ({"BROKER": "orm://other", "DATABASE": "default"}, True),
        ({"BROKER": "orm://other", "DATABASE": "other"}, False),
        ({"BROKER": "orm://other"}, False),
        ({"BROKER": "memory://", "DATABASE": "other"}, False),
    ],
)
def test_w012_reports_a_database_that_is_ignored(options: dict[str, str], is_ignored: bool) -> None:
    found = [one for one in messages(**options) if one.id == "stoker.W012"]
    assert bool(found) == is_ignored


def test_w012_names_both_databases() -> None:
    (found,) = (one for one in messages(DATABASE="queue") if one.id == "stoker.W012")
    assert found.msg == (
        'TASKS["default"]["OPTIONS"]["DATABASE"] is \'queue\', but has no effect: everything is in '
        "the database 'default', because BROKER is 'orm://default'."
    )
    assert found.hint == "Remove DATABASE, or write BROKER = 'orm://queue'."


@pytest.mark.parametrize("broker", ["redis://127.0.0.1:1/0", "unix:///no/such.sock?db=1"])
def test_w009_reports_an_unreachable_broker_server(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is checked only together with databases."""
    away = {"BACKEND": BACKEND, "OPTIONS": {"BROKER": broker}}
    monkeypatch.setattr(ours, "_fit", lambda _alias: [])
    with override_settings(TASKS={"default": away}):
        assert ours.check_databases(databases=None) == []
        (found,) = ours.check_databases(databases=["default"])
    assert (found.id, f"{broker} cannot be reached" in found.msg) == ("stoker.W009", True)


@pytest.mark.parametrize("broker", ["rabbit://x", "rediss:/127", "redis://host:port/0"])
def test_database_checks_leave_an_invalid_broker_to_e002(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_fit", lambda _alias: [])
    assert "stoker.E002" in [one.id for one in messages(BROKER=broker)]
    options = {"BROKER": broker}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        assert ours.check_databases(databases=["default"]) == []


@pytest.mark.parametrize(
    ("broker", "location", "options", "is_same"),
    [
        ("redis://127.0.0.1:6379/0", "redis://localhost", {}, True),
        ("redis://:secret@cache:6380/2", "redis://cache:6380?db=2", {}, True),
        ("redis://cache/2", "redis://other/2, redis://cache", {"db": 2}, True),
        ("redis://cache/2", ["redis://other/2", "rediss://cache:6379/2"], {}, True),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1", {}, True),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock", {}, False),
        ("redis://cache/2", "redis://cache/1", {"db": 2}, False),
        ("redis://cache:6380/2", "redis://cache/2", {}, False),
        ("redis://cache/2", "cache:11211", {}, False),
        ("redis://cache/2", None, {}, False),
        ("redis://cache/2", Path("/var/cache/shop"), {}, False),
        ("redis://cache/2", "redis://cache:none/2", {}, False),
        ("orm://default", "redis://cache/2", {}, False),
    ],
)
def test_w010_reports_a_cache_that_shares_the_brokers_database(
    broker: str, location: Any, options: dict[str, Any], is_same: bool
) -> None:
    cache = {"BACKEND": "django.core.cache.backends.dummy.DummyCache", "OPTIONS": options}
    if location is not None:
        cache["LOCATION"] = location
    with override_settings(CACHES={"default": cache}):
        found = ids(default={"OPTIONS": {"BROKER": broker}})
    assert found == ["stoker.W010"] * is_same


def test_e004_reports_a_missing_app(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if "stoker" not in app]
    assert "stoker.E004" in ids(default={})


UNINSTALLED = """
from importlib import import_module
import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
settings.configure(TASKS={"default": {"BACKEND": "stoker.backend.StokerBackend"}})
django.setup()
from stoker.compat import task_backends
assert [one.id for one in task_backends["default"].check()] == ["stoker.E004"]
for name in ("stoker.dashboard.urls", "stoker.models"):
    try:
        import_module(name)
    except ImproperlyConfigured as error:
        print(error)
"""


def test_modules_that_need_models_say_that_the_app_is_missing() -> None:
    command = [sys.executable, "-c", UNINSTALLED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = "Add 'stoker' to INSTALLED_APPS, and run manage.py migrate.\n"
    assert (done.returncode, done.stdout) == (0, 2 * told), done.stderr


def test_e005_reports_an_unsupported_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert ids(default={}) == ["stoker.E005"]


class KeepOut:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "stoker" else None


@override_settings(DATABASE_ROUTERS=[KeepOut()])
def test_e006_reports_routers_that_refuse_the_tables() -> None:
    assert ids(default={}) == ["stoker.E006"]


def test_e007_reports_backends_that_share_queues_but_not_keys() -> None:
    one, other = {"OPTIONS": {"CLUSTER": "one"}}, {"OPTIONS": {"CLUSTER": "other"}}
    mail, rest = {"QUEUES": ["mail"]}, {"QUEUES": ["rest"]}
    assert ids(default=one, second=other) == ["stoker.E007"]
    assert ids(default=one, second=one) == []
    apart = {"OPTIONS": {"CLUSTER": "one", "BROKER": "memory://"}}
    assert ids(default=apart, second={"OPTIONS": apart["OPTIONS"] | {"CLUSTER": "two"}}) == []
    assert ids(default=one | mail, second=other | rest) == []
    assert ids(default=one | mail, second=other | {"QUEUES": []}) == ["stoker.E007"]


def test_e013_reports_databases_that_share_a_broker_and_its_jobs() -> None:
    """Redis, MongoDB, Disque and IronMQ keep the jobs of each CLUSTER apart, so that is no E007."""
    one = {"BROKER": "redis://127.0.0.1:1/0", "CLUSTER": "one", "DATABASE": "default"}
    other = one | {"DATABASE": "second"}
    queues, missing = {"QUEUES": ["mail"]}, "stoker.E003"
    both = [missing, "stoker.E013"]
    assert ids(default={"OPTIONS": one}, second={"OPTIONS": other}) == both
    assert ids(default={"OPTIONS": one}, second={"OPTIONS": other} | queues) == both
    assert ids(default={"OPTIONS": one}, second={"OPTIONS": one} | queues) == []
    apart = {"OPTIONS": other | {"CLUSTER": "two"}}
    assert ids(default={"OPTIONS": one}, second=apart) == [missing]


@pytest.mark.skipif(TASKS_APP != "django_tasks", reason="this Django has its own tasks")
def test_w002_reports_a_missing_backport(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_tasks"]
    assert ids(default={}) == ["stoker.W002"]


def test_w003_reports_leases_shorter_than_three_heartbeats() -> None:
    options = {"HEARTBEAT_SECONDS": 10, "DATABASE_SECONDS": 5}
    assert ids(default={"OPTIONS": {"LEASE_SECONDS": 29, **options}}) == ["stoker.W003"]
    assert ids(default={"OPTIONS": {"LEASE_SECONDS": 30, **options}}) == []


def test_w004_reports_database_deadlines_longer_than_a_lease() -> None:
    assert ids(default={"OPTIONS": {"DATABASE_SECONDS": 60}}) == ["stoker.W004"]


def test_w005_reports_pickle() -> None:
    assert ids(default={"OPTIONS": {"SERIALIZER": "pickle"}}) == ["stoker.W005"]


def test_w006_reports_untuned_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    off = {"default": {"OPTIONS": {"SQLITE_TUNING": False}}}
    assert ids(**off) == ["stoker.W006"]
    for mode, expected in (("deferred", ["stoker.W006"]), ("immediate", []), ("EXCLUSIVE", [])):
        by_hand = {"transaction_mode": mode, "init_command": "PRAGMA journal_mode=wal"}
        monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", by_hand)
        assert ids(**off) == expected


def test_e012_reports_two_aliases_of_one_sqlite_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "shop.sqlite3"
    file.touch()
    (tmp_path / "linked.sqlite3").symlink_to(file)
    with another_database(NAME=str(file)) as store, another_database(NAME=str(file)) as other:
        tasks = {"default": {"OPTIONS": {"BROKER": f"orm://{store}"}}}
        named = connections[other].settings_dict
        assert ids(**tasks) == ["stoker.E012"]
        for name in (f"{tmp_path}/linked.sqlite3", f"file:{file}?mode=rwc"):
            monkeypatch.setitem(named, "NAME", name)
            assert ids(**tasks) == ["stoker.E012"]
        for query in ("mode=ro", "immutable=1"):
            monkeypatch.setitem(named, "NAME", f"file:{file}?{query}")
            assert ids(**tasks) == [], "it cannot write"
        monkeypatch.setitem(named, "NAME", str(file))
        monkeypatch.setitem(named, "TEST", {"MIRROR": store})
        assert ids(**tasks) == []
        monkeypatch.setitem(named, "TEST", {"MIRROR": None})
        monkeypatch.setattr("stoker.models.outbox.may_have_outbox", lambda alias: alias != other)
        assert ids(**tasks) == []


def test_w014_reports_sqlite_with_atomic_requests(tmp_path: Path) -> None:
    with another_database(NAME=str(tmp_path / "shop"), ATOMIC_REQUESTS=True) as store:
        assert ids(default={"OPTIONS": {"BROKER": f"orm://{store}"}}) == ["stoker.W014"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("repeatable read", ["stoker.W007"]),
        ("read uncommitted", ["stoker.W007"]),
        (None, ["stoker.W007"]),
        ("read committed", []),
    ],
)
def test_w007_reports_mysql_isolation_levels(
    monkeypatch: pytest.MonkeyPatch, level: Any, expected: list[str]
) -> None:
    from django.db import connections

    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {"isolation_level": level})
    assert ids(default={}) == expected


def test_check_of_djangos_tasks_runs_stokers_check() -> None:
    wrong = {"default": {"BACKEND": BACKEND, "OPTIONS": {"NO_SUCH": 1}}}
    check_tasks = import_module(f"{TASKS_APP}.checks").check_tasks
    assert check_tasks in registry.get_checks()
    with override_settings(TASKS=wrong):
        assert [message.id for message in check_tasks()] == ["stoker.E001"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"TOKENS": "x"}, "has no option 'TOKENS'"),
        ({"TOKEN_USER": 7}, "must be a non-empty string"),
        ({"SESSION": "no"}, "must be True or False"),
        ({"MAX_BULK": 0}, "must be between 1 and 100000"),
        ("x", "must be a dict"),
    ],
)
def test_e008_reports_wrong_api_settings(wrong: Any, told: str) -> None:
    with override_settings(STOKER_API=wrong):
        (message,) = ours.check_api()
        assert (message.id, told in message.msg) == ("stoker.E008", True)
        with pytest.raises(ConfigurationError, match=told):
            api_settings()
    for right in ({}, None, {"SESSION": False, "TOKEN_USER": "shop.access.user_of"}):
        with override_settings(STOKER_API=right):
            assert ours.check_api() == []


@pytest.mark.parametrize("path", ["shop.nowhere.user_of", "stoker.conf.nothing", "math.pi"])
def test_token_user_that_is_no_function_is_refused(path: str) -> None:
    with (
        override_settings(STOKER_API={"TOKEN_USER": path}),
        pytest.raises(ConfigurationError, match="TOKEN_USER"),
    ):
        api_settings().find_user_of("x")


def test_e009_reports_wrong_schedules_in_settings() -> None:
    def found(task: str, rule: Any = Cron("0 3 * * *")) -> list[str]:  # noqa: B008 - it is frozen
        schedules = {"nightly": {"task": task, "schedule": rule}}
        tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"SCHEDULES": schedules}}}
        with override_settings(TASKS=tasks):
            return [str(message.id) for message in ours.check_schedules()]

    assert found("tests.app.tasks.nothing") == []
    assert found("tests.app.tasks.add") == ["stoker.E009"]
    assert found("shop.tasks.nowhere") == ["stoker.E009"]
    assert found("tests.app.tasks.nothing", Cron("0 3 * * *", jitter="24h")) == []
    assert found("tests.app.tasks.nothing", every(seconds=10, jitter="2h")) == []
    assert found("tests.app.tasks.nothing", every(seconds=10, jitter="3h")) == ["stoker.E009"]


@pytest.fixture
def broken_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the app `broken`, whose tasks cannot be imported."""
    app = tmp_path / "broken"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "tasks.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "broken"]):
        yield


@pytest.mark.usefixtures("broken_tasks")
def test_w008_reports_modules_that_cannot_be_imported() -> None:
    (warning,) = ours.check_schedules()
    assert warning.id == "stoker.W008"
    assert "broken.tasks: ModuleNotFoundError: No module named 'no_such_module'" in warning.msg


@pytest.mark.usefixtures("broken_tasks")
def test_site_with_a_broken_module_of_tasks_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise every command would end in a traceback, the one that reports W008, too."""
    import_tasks_or_log()
    (record,) = caplog.records
    assert record.getMessage() == "broken.tasks cannot be imported, so its tasks are unknown."
    assert "tests.app.tasks.add" in tasks_of_apps()


def test_w015_reports_that_no_backend_is_stokers() -> None:
    immediate = f"{TASKS_APP}.backends.immediate.ImmediateBackend"
    with override_settings(TASKS={"default": {"BACKEND": immediate}}):
        (warning,) = ours.check_tasks()
    assert warning.id == "stoker.W015"
    assert "stoker.backend.StokerBackend" in str(warning.hint)


def test_w011_reports_options_for_retries_of_tasks_with_one_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(**options: Any) -> list[checks.CheckMessage]:
        declared = replace(tasks.nothing, **options)
        monkeypatch.setattr(ours, "tasks_of_apps", lambda: {"shop.tasks.pay": declared})
        return ours.check_tasks()

    assert found() == []
    assert found(max_attempts=2, backoff=1) == []
    assert found(max_attempts=1) == []
    (message,) = found(max_attempts=1, backoff=1)
    assert (message.id, message.msg) == (
        "stoker.W011",
        "shop.tasks.pay has backoff, but only one attempt: nothing is retried.",
    )
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"MAX_ATTEMPTS": 1}}}):
        assert [one.id for one in found(backoff=1)] == ["stoker.W011"]


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster"])
def test_results_in_redis_are_allowed_on_every_kind_of_redis(scheme: str) -> None:
    found = messages(BROKER=f"{scheme}://127.0.0.1:1", RESULTS="redis")
    assert "stoker.E011" not in [message.id for message in found]
