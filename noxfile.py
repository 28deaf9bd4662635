"""The parts of `make check`, `make test` and `make test-all`.

`make test PART="unit postgres"` runs some of them, and `.venv/bin/nox --list` lists them. The
servers that they need are started by scripts/test, or by `eval "$(scripts/services env)"`.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tests.servers.find import start_version
from tests.servers.versions import VARIABLE

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "none"  # scripts/setup makes the environments
nox.options.tags = ["test"]
nox.options.allow_parallel = True

# The programs of the environment that nox itself is in.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

REPORTS = Path("reports")
VENVS = {
    "5.2": (".venv", "requirements/dev.txt"),
    "6.0": (".venv-6.0", "requirements/django-6.0.txt"),
    "6.1": (".venv-6.1", "requirements/django-6.1.txt"),
    # Django 5.2.0, and the oldest of all other libraries that pyproject.toml allows.
    "lowest": (".venv-lowest", "requirements/lowest.txt"),
}
NEWER_PYTHONS = ("3.14", "3.13", "3.12")
"""The newest that is found runs the tests of the newer Djangos."""
OLDER_PYTHONS = ("3.11", "3.12")
"""The oldest that is found runs the tests of the oldest libraries, which have no later wheels."""


@dataclass(frozen=True)
class Part:
    """Tests that run together: on one database, with one Django."""

    name: str
    paths: tuple[str, ...]
    database: str = "sqlite"
    django: str = "5.2"
    """A key of VENVS."""
    marks: str = ""
    """What pytest's option -m takes."""
    workers: int = 2
    """Processes of pytest-xdist, of which each takes 4 s to start. Tests of clusters wait more than
    they compute, and take more. 0: a small part does without pytest-xdist."""
    needs: tuple[str, ...] = ()
    """Servers without which the part is skipped."""
    version: str = ""
    """The version of a server that the part starts for itself (tests/servers/versions.py)."""


UNIT = Part("unit", ("tests/unit", "tests/test_tidy.py"))

# -- make test ------------------------------------------------------------------------------------

STORE = (
    "tests/conformance",
    "tests/integration",
    "tests/lifecycle",
    "tests/workflows",
    "tests/guards",
    "tests/locks",
    "tests/upgrade",
)
CLUSTERS = ("tests/story", "tests/cluster")
ON_SQLITE = (
    "tests/reporters",
    "tests/testing",
    "tests/contrib",
    "tests/crash",
    "tests/progress",
    "tests/test_deploy.py",
    "tests/docs",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_release.py",
)
ON_POSTGRES = ("tests/api", "tests/dashboard", "tests/test_benchmark_guard.py")

# Of these, `make test` leaves out what is marked `slow`, and what it runs on another database: see
# HOMES in tests/conftest.py.
QUICK = (
    Part("sqlite", (*CLUSTERS, *ON_SQLITE, *STORE), workers=3),
    Part(
        "postgres",
        (*CLUSTERS, *STORE, *ON_POSTGRES),
        database="postgres",
        workers=3,
        needs=("postgres",),
    ),
    Part("mariadb", (*CLUSTERS, *STORE), database="mariadb", needs=("mariadb",)),
    Part("admin", ("tests/admin",), database="with_admin", workers=0, needs=("postgres",)),
    Part("browser", ("tests/browser",), database="browser", workers=0, needs=("postgres",)),
    Part(
        "redis",
        ("tests/story",),
        database="on_redis",
        marks="on_redis",
        workers=0,
        needs=("redis", "postgres"),
    ),
)
LEFT_TO_TEST_ALL = ("tests/typing", "tests/test_benchmarks.py", "tests/test_peers.py")
"""No part of `make test` has these. Any other module of tests has to be in one."""
OF_DJANGO = (
    *(
        f"tests/unit/test_{name}.py"
        for name in (
            "backend",
            "checks",
            "finding",
            "front_door",
            "task",
            "task_options",
            "waiting",
        )
    ),
    "tests/upgrade/test_migrations.py",
)
"""What another Django may break."""
DJANGOS = (
    Part("django-6.0", OF_DJANGO, django="6.0", marks="not slow", workers=0),
    Part("django-6.1", OF_DJANGO, django="6.1", marks="not slow", workers=0),
)

# -- make test-all --------------------------------------------------------------------------------

ALL = (
    Part(
        "all-sqlite",
        (
            *CLUSTERS,
            *ON_SQLITE,
            *STORE,
            "tests/api",
            "tests/typing",
            "tests/test_benchmarks.py",
        ),
        workers=4,
    ),
    Part(
        "all-postgres",
        (
            *CLUSTERS,
            *STORE,
            *ON_POSTGRES,
            "tests/typing",
            "tests/test_benchmarks.py",
            "tests/test_peers.py",
        ),
        database="postgres",
        workers=4,
        needs=("postgres",),
    ),
    # Alone, because other tests connect receivers to signals, and each costs instructions.
    Part("all-cost", ("tests/test_benchmark_guard.py",), workers=0),
    Part("all-mariadb", (*CLUSTERS, *STORE), database="mariadb", workers=4, needs=("mariadb",)),
    Part("all-admin", ("tests/admin",), database="with_admin", needs=("postgres",)),
    Part("all-browser", ("tests/browser",), database="browser", workers=0, needs=("postgres",)),
    *(
        Part(
            f"all-{broker}",
            ("tests/story",),
            database=f"on_{broker}",
            marks=f"on_{broker}",
            needs=(broker, "postgres"),
        )
        for broker in ("redis", "mongodb", "disque", "ironmq", "sqs")
    ),
    Part(
        "all-two-databases",
        (
            "tests/story/test_two_databases.py",
            "tests/story/test_outbox.py",
            "tests/guards/test_unique_two_databases.py",
            "tests/workflows/test_two_databases.py",
            "tests/contrib/django_q/test_two_databases.py",
        ),
        database="two_databases",
        needs=("postgres",),
    ),
    Part(
        "all-django-6.1-postgres",
        ("tests/conformance", "tests/api/test_jobs.py", "tests/api/test_permissions.py"),
        django="6.1",
        database="postgres",
        marks="not (disque or ironmq or sqs)",  # their transports ask Django for nothing
        needs=("postgres",),
    ),
    Part(
        "all-django-6.1-admin",
        ("tests/admin/test_jobs.py",),
        django="6.1",
        database="with_admin",
        needs=("postgres",),
    ),
    # Tests of code that calls libraries.
    Part(
        "all-lowest",
        ("tests/unit", "tests/reporters", "tests/cluster/test_monitor_cli.py"),
        django="lowest",
    ),
    Part(
        "all-lowest-postgres",
        (
            "tests/api",
            "tests/conformance/test_arrays.py",
            "tests/conformance/test_claim.py",
            "tests/conformance/test_enqueue.py",
            "tests/conformance/test_wake.py",
            *(
                f"tests/integration/test_{name}.py"
                for name in (
                    "disque",
                    "doctor",
                    "ironmq",
                    "metrics",
                    "mongodb",
                    "redis_connections",
                    "redis_damage",
                    "redis_server",
                    "redis_topologies",
                    "sqs",
                )
            ),
        ),
        django="lowest",
        database="postgres",
        needs=("postgres",),
    ),
)

STORIES_OF_SERVERS = tuple(
    f"tests/story/test_{name}.py"
    for name in (
        "atomic",
        "database_restart",
        "lost_connections",
        "mariadb_limits",
        "pgbouncer",
        "rates",
        "rollback",
        "server_limits",
        "user_transactions",
    )
)
"""In these the server does something: it locks, refuses, ends or loses a connection. In the other
stories only our processes do, so they run on one version of each database."""
OTHER_DATABASES = (("mysql-9", "mariadb"), ("postgres-14", "postgres"), ("postgres-18", "postgres"))
OTHER_VERSIONS = (
    *(
        Part(
            f"all-{version}",
            (*STORE, *STORIES_OF_SERVERS),
            database=database,
            marks="not (disque or ironmq or sqs)",  # their transports ask no database
            workers=4,
            version=version,
        )
        for version, database in OTHER_DATABASES
    ),
    *(
        Part(
            f"all-{version}",
            ("tests/conformance", "tests/locks/test_places.py", "tests/integration"),
            marks="redis",
            version=version,
        )
        for version in ("redis-6.2", "valkey-9")
    ),
    Part(
        "all-redis-6.2-stories",
        ("tests/story",),
        database="on_redis",
        marks="on_redis",
        needs=("postgres",),
        version="redis-6.2",
    ),
)

# -- how a part runs ------------------------------------------------------------------------------


@nox.session(tags=["check", "test", "all"])
def static(session: nox.Session) -> None:
    """Format, lint, types, import floors, dependencies, generated pages."""
    with _measured(session):
        session.run("ruff", "format", "--check", ".")
        session.run("ruff", "check", ".")
        session.run("mypy")
        session.run("lint-imports")
        session.run("deptry", "src")
        session.run("python", "scripts/reference", "--check")


@nox.session(tags=["check", "test", "all"])
def unit(session: nox.Session) -> None:
    """The unit tests, which need no service and do not sleep."""
    _run_pytest(session, UNIT)


def _add(part: Part, *tags: str, is_quick: bool = False) -> None:
    def run(session: nox.Session) -> None:
        _run_pytest(session, part, is_quick=is_quick)

    run.__doc__ = f"{part.database}, Django {part.django}: {', '.join(part.paths)}"
    nox.session(name=part.name, tags=list(tags))(run)


for _part in QUICK:
    _add(_part, "test", is_quick=True)
for _part in DJANGOS:
    _add(_part, "test", "all")
for _part in (*ALL, *OTHER_VERSIONS):
    _add(_part, "all")


@nox.session(tags=["all"])
def planted(session: nox.Session) -> None:
    """Plant mistakes in a copy of the source: the tests have to notice."""
    _skip_without(session, ("postgres",))
    with _measured(session):
        session.run(
            "python",
            "-m",
            "tests.planted",
            *(session.posargs or ["some"]),
            env={"STOKER_TEST_RUN": _run_word(session)},
        )


def _run_pytest(session: nox.Session, part: Part, *, is_quick: bool = False) -> None:
    _skip_without(session, part.needs)
    environment = {
        "DJANGO_SETTINGS_MODULE": f"tests.settings.{part.database}",
        "STOKER_TEST_RUN": _run_word(session),
        # Empty is as good as unset: else every process compiles the tests and us once more.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    if not is_quick:
        environment["STOKER_TEST_EXAMPLES"] = os.environ.get("STOKER_TEST_EXAMPLES", "40")
    if data := os.environ.get("STOKER_TEST_COVERAGE"):  # scripts/coverage
        environment |= {
            "COVERAGE_PROCESS_START": str(Path("pyproject.toml").resolve()),
            "COVERAGE_FILE": data,
        }
    marks = [mark for mark in (part.marks, "not slow and not repeated" if is_quick else "") if mark]
    with _measured(session), ExitStack() as stack:
        if part.version:
            environment |= _start_version(session, part.version, stack)
        session.run(
            f"{_venv_for(session, part)}/bin/python",
            "-m",
            "pytest",
            "--quiet",
            f"--numprocesses={part.workers}",
            "--no-loadscope-reorder",  # or all that waits alone, and longest, would come last
            f"--junitxml={REPORTS / session.name}.xml",
            *(["-m", " and ".join(f"({mark})" for mark in marks)] if marks else []),
            *part.paths,
            *session.posargs,
            env=environment,
            external=True,
            # 5: there was no such test, as when an option of the command line selects others.
            success_codes=[0, 5] if session.posargs else [0],
        )


def _venv_for(session: nox.Session, part: Part) -> str:
    """Give the environment of the part's Django, and make it if it is another one than 5.2."""
    venv, requirements = VENVS[part.django]
    if part.django != "5.2":
        pythons = OLDER_PYTHONS if part.django == "lowest" else NEWER_PYTHONS
        find = ["scripts/find-python", *pythons]
        python = subprocess.run(find, capture_output=True, text=True, check=False).stdout.strip()
        if not python:
            session.skip(f"no Python {', '.join(pythons)} was found")
        session.run("scripts/setup", venv, requirements, env={"PYTHON": python}, external=True)
    elif part.database == "mariadb" and (why := Path(venv, ".no-mysqlclient")).exists():
        session.skip(why.read_text().strip())
    return venv


def _skip_without(session: nox.Session, services: tuple[str, ...]) -> None:
    missing = dict(
        reason.split(": ", 1)
        for reason in os.environ.get("STOKER_TEST_MISSING", "").split("; ")
        if reason
    )
    for service in services:
        if not os.environ.get(f"STOKER_TEST_{service.upper()}_URL"):
            advice = 'run `make test`, or `eval "$(scripts/services env)"` first'
            session.skip(f"{service}: {missing.get(service, advice)}")


def _start_version(session: nox.Session, name: str, stack: ExitStack) -> dict[str, str]:
    """Start a server of that version until the stack ends; skip the part if it cannot be had."""
    service = start_version(name, stack)
    if not service.url:
        session.skip(f"{name}: {service.reason}")
    return {service.variable: service.url, VARIABLE: name}


def _run_word(session: nox.Session) -> str:
    """Give a word for the names of this part's databases: parts of two runs may overlap."""
    word = session.name.replace("-", "_").replace(".", "")
    return f"{os.environ.get('STOKER_TEST_RUN', os.getpid())}_{word}"


@contextmanager
def _measured(session: nox.Session) -> Iterator[None]:
    """Write down how much processor time the part took, for the summary."""
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / f"{session.name}.xml").unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        yield
    finally:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        (REPORTS / f"{session.name}.json").write_text(json.dumps({"processor_seconds": seconds}))
