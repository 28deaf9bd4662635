"""The documentation is true: its code runs, and its tables agree with the code.

Conventions in docs/*.md, which do not disturb readers who do not know them:

- A block of ``console`` has commands after ``$ `` and below each its output; ``...`` stands for
  what varies. With title="second terminal" a command keeps running, and the output shown must
  appear; ``^C`` is Ctrl-C there.
- A block of ``pycon`` continues in the Python shell that ``$ python manage.py shell`` opened.
- A block whose title is a file name is that file; "(add at the end)" appends to it, and
  "(add at the end, on Django 5.2)" does so on that version.
- ``<!-- not run: why -->`` before a block prevents its run.

The tutorial is followed in an empty folder. In the other pages all blocks of ``python`` run, one
after another in one module, and between them:

- ``<!-- run the jobs -->`` runs everything that is due;
- ``<!-- check: expression -->`` must be true.
"""

import itertools
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import global_settings
from django.core.management import CommandError, load_command_class
from django.db import connection, models

import stoker.exceptions
import stoker.models
from stoker.cluster.scheduler.scheduler import HOT_TABLES
from stoker.compat import task_backends
from stoker.conf import option_fields, problems
from stoker.jobs.states import JobState
from stoker.setting_values import ApiSettings, fields_by_key
from stoker.testing import drain

from tests.docs.calls import call_api, send_event
from tests.docs.moves import Move, attempts_in, changes_between, moves, ways
from tests.docs.pages import DOCS, EXAMPLES, PAGES, TUTORIAL, steps_of
from tests.docs.stand import Stand
from tests.docs.walk import Walk

TESTS = Path(__file__).parent

# -- the tutorial ---------------------------------------------------------------------------------


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    folder = tmp_path / "project"
    folder.mkdir()
    walk = Walk(folder)
    yield walk
    walk.close()


def test_tutorial_can_be_followed(walk: Walk) -> None:
    """Every command, file and output is as shown."""
    walk.follow(TUTORIAL)


# -- the other pages ------------------------------------------------------------------------------


class Order(models.Model):
    """The model of the examples: `shop.models` of the tutorial, with more fields."""

    customer = models.CharField(max_length=100)
    is_paid = models.BooleanField(default=False)
    fence = models.BigIntegerField(default=0)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"{self.customer}'s order"


@pytest.fixture
def shop(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide the app of the examples: `shop.models` can be imported and has its table."""
    package, module = ModuleType("shop"), ModuleType("shop.models")
    module.Order = Order  # type: ignore[attr-defined] # what a module holds is not typed
    monkeypatch.setitem(sys.modules, "shop", package)
    monkeypatch.setitem(sys.modules, "shop.models", module)
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    yield
    with connection.schema_editor() as editor:
        editor.delete_model(Order)


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_examples_run(page: Path, shop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all Python blocks of the page in order, and check its checks."""
    name = f"docs_howto_{page.stem.replace('-', '_')}"
    module = ModuleType(name)
    vars(module)["urlpatterns"] = []  # pages add to those of a project
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "shop.tasks", module)
    for step in steps_of(page):
        place = f"{page.name}:{step.line}"
        if not step.is_run:
            continue
        if step.kind == "python" and step.title.endswith("settings.py"):
            refuse_wrong_settings(step.text, place)
        elif step.kind == "python":
            exec(compile(step.text, place, "exec"), module.__dict__)  # noqa: S102 - our own pages
        elif step.kind == "run":
            run_the_jobs()
        elif step.kind == "check":
            vars(module).update({**AT_HAND, **vars(module)})
            assert eval(step.text, vars(module)), f"{place}: {step.text}"  # noqa: S307 - as above


AT_HAND = {
    **{name: getattr(stoker.models, name) for name in ("Attempt", "DeadLetter", "Job")},
    "async_to_sync": async_to_sync,
    "call_api": call_api,
    "send_event": send_event,
    "attempt": lambda number: SimpleNamespace(attempts=number),
    "task_backends": task_backends,
}
"""Names that checks may use without an import on the page."""


def refuse_wrong_settings(text: str, place: str) -> None:
    """Check that a page's settings are valid settings of Stoker."""
    names: dict[str, Any] = {"INSTALLED_APPS": [], "DATABASES": {"default": {}}}
    exec(compile(text, place, "exec"), names)  # noqa: S102 - as above
    for alias, params in names.get("TASKS", {}).items():
        assert not problems(alias, params), place


def run_the_jobs() -> None:
    """Run all jobs, those that they enqueue, and deferred ones."""
    while drain(include_deferred=True):
        continue


# -- commands and settings on the pages -----------------------------------------------------------


def test_commands_on_the_pages_are_valid() -> None:
    """Every `manage.py stoker ...` in the documentation can be parsed."""
    command = load_command_class("stoker", "stoker")
    parser = command.create_parser("manage.py", "stoker")
    words = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\n`|;#&"')])+"""
    found = [
        (page.name, line)
        for page in PAGES
        for line in re.findall(rf"manage\.py stoker ((?!SUBCOMMAND){words})", page.read_text())
    ]
    assert found
    for page, line in found:
        try:
            parser.parse_args(shlex.split(line))
        except (CommandError, SystemExit) as error:
            raise AssertionError(f"{page}: manage.py stoker {line}: {error}") from None


def test_api_settings_table_agrees_with_the_code() -> None:
    page = (DOCS / "howto" / "http-api.md").read_text()
    table = page.partition("<!-- the settings of the API -->")[2].strip().partition("\n\n")[0]
    rows = {
        f"| `{key}` | `{spec.default}` | {spec.metadata['doc']} |"
        for key, spec in fields_by_key(ApiSettings).items()
    }
    assert rows == set(table.splitlines()[2:])


def test_each_row_of_a_table_is_one_line() -> None:
    blocks = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
    assert not [
        f"{page.name}: {line}"
        for page in DOCS.rglob("*.md")
        for line in blocks.sub("", page.read_text()).splitlines()
        if line.startswith("|") and not line.endswith("|")
    ]


@pytest.mark.parametrize("page", ["howto/run-in-production.md", "explanation/cluster.md"])
def test_pages_name_the_tables_that_upkeep_vacuums(page: str) -> None:
    (passage,) = [
        part
        for part in re.split(r"\n(?=- |\d\. |\n)", (DOCS / page).read_text())
        if re.search(r"\bvacuums\b.*`stoker_", part, re.DOTALL)
    ]
    assert set(re.findall(r"`(stoker_\w+)`", passage)) == {
        model._meta.db_table for model in HOT_TABLES
    }


def test_errors_that_wait_raises_are_where_the_page_says() -> None:
    text = (DOCS / "howto" / "results.md").read_text()
    table = text.partition("| error | when |\n")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `(\w+)` ", table, re.MULTILINE)
    assert len(names) == 6
    ours = [name for name in names if hasattr(stoker.exceptions, name)]
    assert set(names) - set(ours) == {"TransactionManagementError", "TaskResultDoesNotExist"}
    assert all(hasattr(stoker, name) for name in names[:3])


def test_every_error_is_in_the_tree() -> None:
    tree = (DOCS / "reference" / "errors.md").read_text().split("```")[1]
    errors = {
        name
        for name, value in vars(stoker.exceptions).items()
        if isinstance(value, type) and value.__module__ == stoker.exceptions.__name__
    }
    assert errors <= set(re.findall(r"\w+", tree))


def test_settings_on_the_pages_exist() -> None:
    """Every `SETTING` in the documentation is one of Stoker or Django, or another known word."""
    known = {
        *option_fields(),
        *JobState.names,
        *dir(global_settings),
        *fields_by_key(ApiSettings),
        *DATABASE_KEYS,
        *STRANGERS,
    }
    unknown = [
        f"{page.name}: {word}"
        for page in PAGES
        for word in re.findall(r"`([A-Z][A-Z0-9_]+)`", page.read_text())
        if word not in known and not word.startswith("CELERY_")
    ]
    assert not unknown


DATABASE_KEYS = {
    "OPTIONS", "QUEUES", "CONN_MAX_AGE", "CONN_HEALTH_CHECKS", "DISABLE_SERVER_SIDE_CURSORS",
    "ATOMIC_REQUESTS", "TASKS",
}  # fmt: skip
STRANGERS = {
    "ERROR", "INFO", "WARNING",
    "COMMIT", "BEGIN", "COPY", "INSERT", "LISTEN", "NOTIFY", "NULL", "SIGTERM", "SIGINT", "SIGHUP",
    "JSON_TABLE", "LIMIT", "RETURNING",
    "OFF", "OFFSET", "SIGCONT", "SIGKILL", "SIGSTOP", "TMPDIR", "UUID", "UPDATE", "VACUUM",
    "WAL", "FULL", "NORMAL", "NOREPL", "LOCATION", "HOMES",
    "CLOCK_BOOTTIME", "PR_SET_CHILD_SUBREAPER", "O_APPEND",
    "UNKNOWN", "PENDING", "RECEIVED", "STARTED", "SUCCESS", "FAILURE", "REVOKED",
    "STOKER_API", "NO_COLOR", "APP_DIRS", "DIRS", "Q_CLUSTER", "Q_CLUSTER_NAME", "ALT_CLUSTERS",
}  # fmt: skip


# -- the life of a job ----------------------------------------------------------------------------


def test_every_move_is_in_the_table() -> None:
    assert {(move.start, move.event) for move in moves()} == set(ways())


@pytest.mark.parametrize(
    ("page", "mark"),
    [("what-goes-wrong.md", "the table of faults"), ("what-happens-when.md", "what happens")],
)
def test_each_row_names_existing_tests(page: str, mark: str) -> None:
    text = (DOCS / "explanation" / page).read_text()
    _, *tables = text.split(f"<!-- {mark} -->")
    rows = [row for table in tables for row in table.strip().partition("\n\n")[0].splitlines()[2:]]
    named = [re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", row.rpartition(" | ")[2]) for row in rows]
    assert named
    assert all(named)
    for path, name in itertools.chain.from_iterable(named):
        assert f"def {name}(" in (TESTS / path).read_text(), f"{path} has no {name}"


@pytest.mark.django_db
@pytest.mark.parametrize("move", moves(), ids=lambda move: f"{move.start}: {move.event}")
def test_moves_change_the_tables_as_documented(move: Move) -> None:
    """Cause each move with the real code, then compare the store's rows."""
    prepare, act = ways()[move.start, move.event]
    stand = Stand()
    prepare(stand)
    before = stand.rows()
    assert stand.state() == move.start
    act(stand)
    after = stand.rows()
    assert stand.state() == move.end
    assert changes_between(before, after) == move.rows
    used_before, used_after = attempts_in(before), attempts_in(after)
    used = used_before or 0
    told = {"": None, "0": 0, "same": used_before, "+1": used + 1, "-1": used - 1}
    assert used_after == told[move.attempts]
