"""What all tests share: the seed, databases that other processes see, servers of a test's own."""

import gc
import json
import os
import random
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest
from django.test import TransactionTestCase

from tests.servers.mariadb import PrivateMariadb
from tests.servers.mysql import PrivateMysql
from tests.servers.postgres import PrivatePostgres
from tests.servers.private import NotInstalledError, PrivateServer
from tests.servers.versions import chosen_version

pytest_plugins = ["tests.groups", "tests.processor_time"]

DATABASES = {
    "sqlite",
    "postgres",
    "mariadb",
    "two_databases",
    "on_redis",
    "on_mongodb",
    "on_disque",
    "with_admin",
    "on_ironmq",
    "on_sqs",
}
SERVICES = ("redis", "memcached", "mongodb", "disque", "ironmq", "sqs")
HOMES = {
    "conformance": {"postgres"},
    "integration": {"postgres"},
    "workflows": {"postgres"},
    "api": {"postgres"},
    "dashboard": {"postgres"},
    "guards": {"postgres", "sqlite"},
    "locks": {"postgres", "sqlite"},
    "lifecycle": {"postgres", "sqlite", "mariadb"},
    "cluster": {"sqlite"},
    "story": {"postgres", "on_redis"},
}
"""Folder -> databases on which `make test` runs its tests. On another one it runs only what is
marked for that and for none of these; `make test-all` runs the rest."""
CHOSEN_ON_MARIADB = (
    "tests/conformance/test_claim.py",
    "tests/conformance/test_guards.py",
    "tests/conformance/test_leases.py",
    "tests/conformance/test_transactions.py",
    "tests/locks/test_database.py",
    "tests/guards/test_unique.py",
    "tests/integration/test_requeue_together.py",
)
"""Its locks and its isolation differ from PostgreSQL's."""
SEED = "STOKER_TEST_SEED"
AnyServer = TypeVar("AnyServer", bound=PrivateServer)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --seed: with the seed of a failed run, a random test takes the same way again."""
    text = f"seed of the random tests (or {SEED}; otherwise another one in each run)"
    parser.addoption("--seed", type=int, default=None, help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed, before xdist starts its workers: they take it from the environment."""
    if config.option.seed is None:
        config.option.seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(10**6))
    os.environ[SEED] = str(config.option.seed)


def pytest_report_header(config: pytest.Config) -> str:
    """Show the seed of this run."""
    return f"seed: {config.option.seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of other databases, which have runs of their own; skip what is missing."""
    settings = os.environ.get("DJANGO_SETTINGS_MODULE", "tests.settings.sqlite")
    ours = settings.rpartition(".")[2]
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        wanted = {marker.name for marker in item.iter_markers()} & DATABASES
        if is_repeated(item, wanted, ours):
            item.add_marker(pytest.mark.repeated)
        (kept if not wanted or ours in wanted else left_out).append(item)
        for service in SERVICES:
            is_there = os.environ.get(f"STOKER_TEST_{service.upper()}_URL")
            if item.get_closest_marker(service) and not is_there:
                item.add_marker(pytest.mark.skip(reason=why_missing(service)))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection() -> None:
    """Disable the garbage collector while pytest collects tests."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, and run it less often. This saves a
    tenth of the processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)
    gc.enable()


def is_repeated(item: pytest.Item, wanted: set[str], ours: str) -> bool:
    """Tell whether `make test` runs this test on another database, where that is enough."""
    homes = HOMES.get(item.nodeid.removeprefix("tests/").partition("/")[0])
    if homes is None or ours in homes or (wanted and not wanted & homes):
        return False
    return not (ours == "mariadb" and item.nodeid.startswith(CHOSEN_ON_MARIADB))


def why_missing(service: str) -> str:
    """Say why a service is not there, in the words of scripts/services."""
    for missing in os.environ.get("STOKER_TEST_MISSING", "").split("; "):
        if missing.startswith(f"{service}: "):
            return missing
    return f"{service}: run `make test`, or `eval $(scripts/services env)` first"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell with the failure of a random test which seed brings it back."""
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("seed", f"again with: pytest --seed={item.config.option.seed}"))
    return report


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Give the seed for a `random.Random` of the test's own."""
    return int(request.config.option.seed)


@pytest.fixture(scope="session")
def django_db_modify_db_settings_xdist_suffix() -> None:
    """Do nothing: tests/settings/base.py gives each worker its own databases."""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Tell the processes that tests start which databases are the tests' own (settings/base.py).

    Make each claim in this process find all ready jobs: how long watermarks are valid depends on
    the speed of the machine.
    """
    from django.db import connections

    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_TEST_DATABASES", json.dumps(names))
        patch.setattr("stoker.brokers.orm.claim.LONGEST_SECONDS", 0.0)
        yield


@pytest.fixture
def lasting_watermarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watermarks of this process be valid as long as in a cluster."""
    monkeypatch.setattr("stoker.brokers.orm.claim.LONGEST_SECONDS", 5.0)


@pytest.fixture(autouse=True, scope="session")
def _tables_are_emptied_quickly() -> Iterator[None]:
    """Empty tables in our own way instead of `flush`, after each test that commits, and keep the
    connections: a new one makes the server read its catalogue again, which took as long as the
    statements of a test."""
    from tests.tables import empty_tables

    def tear_down(case: TransactionTestCase) -> None:
        for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
            empty_tables(alias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", tear_down)
        patch.setattr(TransactionTestCase, "_should_reload_connections", lambda case: False)
        yield


@pytest.fixture
def private_postgres() -> Iterator[PrivatePostgres]:
    """Give a PostgreSQL that the test may stop, kill and start."""
    with _started_or_skipped(PrivatePostgres()) as server:
        yield server


@pytest.fixture
def private_mariadb() -> Iterator[PrivateMariadb]:
    """Give a MariaDB or MySQL that the test may stop, kill and start."""
    version = chosen_version("mariadb")
    with _started_or_skipped(PrivateMysql(version) if version else PrivateMariadb()) as server:
        yield server


@contextmanager
def _started_or_skipped(server: AnyServer) -> Iterator[AnyServer]:
    with ExitStack() as stack:
        try:
            stack.enter_context(server)
        except NotInstalledError as missing:
            pytest.skip(f"private {server.name}: {missing}")
        yield server


@pytest.fixture
def events() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Collect the name and the facts of each event."""
    from stoker.signals import event  # Django is not set up when this module is imported

    heard: list[tuple[str, dict[str, Any]]] = []

    def note(name: str, facts: dict[str, Any], **_: Any) -> None:
        heard.append((name, facts))

    event.connect(note)
    yield heard
    event.disconnect(note)
