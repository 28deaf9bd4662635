"""Finding a task by the name in its package."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.utils.functional import SimpleLazyObject

from stoker.compat import DjangoTask
from stoker.exceptions import UnknownTask
from stoker.tasks.decorator import task
from stoker.tasks.registry import find_task, imported_task, named_task, task_of

pytestmark = pytest.mark.unit


@task
def here() -> None: ...


def _inner() -> None: ...


renamed = task(_inner)
variant = task(priority=5)(_inner)


class Box:
    @task
    def inside() -> None: ...


def no_task() -> None: ...


@SimpleLazyObject
def lazy() -> None:
    raise AssertionError("the lazy object was evaluated")


def plain_function() -> None: ...


plain = DjangoTask(
    func=plain_function,
    priority=0,
    backend="default",
    queue_name="default",
    run_after=None,
    takes_context=False,
)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_task_is_found_by_its_path() -> None:
    assert find_task(here.module_path) is here


def test_task_in_a_class_is_found() -> None:
    assert Box.inside.module_path == f"{__name__}.Box.inside"
    assert find_task(Box.inside.module_path) is Box.inside


def test_plain_django_task_is_found() -> None:
    assert plain.module_path == f"{__name__}.plain_function"
    assert find_task(plain.module_path) is plain


def test_task_with_another_name_than_its_function_is_found() -> None:
    assert renamed.module_path == f"{__name__}._inner"
    assert find_task(renamed.module_path) is renamed


def test_unknown_name_in_a_module_is_reported() -> None:
    with pytest.raises(UnknownTask, match=r"test_finding has no 'gone'\.$"):
        find_task(f"{__name__}.gone")


def test_unknown_task_of_a_package_mentions_older_code() -> None:
    options = SimpleNamespace(via="")
    with pytest.raises(UnknownTask, match=r"has no 'gone'\. Was it renamed .* older code"):
        task_of(SimpleNamespace(task=f"{__name__}.gone", options=options))


@pytest.mark.parametrize("path", ["tests.app.tasks.ad", "tests.app.task.add"])
def test_mistyped_name_of_a_task_is_answered_with_a_suggestion(path: str) -> None:
    with pytest.raises(UnknownTask, match=r"\. Did you mean 'tests\.app\.tasks\.add'\?$") as told:
        named_task(path)
    assert "worker" not in str(told.value)


def test_name_that_is_like_no_task_is_answered_without_a_suggestion(modules: Path) -> None:
    (modules / "broken_two.py").write_text("1 / 0\n")
    for path in ("x.y", "tests.app.tasks", "broken_two.task"):
        with pytest.raises(UnknownTask) as told:
            named_task(path)
        assert "Did you mean" not in str(told.value)


def test_unknown_name_in_a_class_is_reported() -> None:
    with pytest.raises(UnknownTask, match=r"has no 'Box\.gone'"):
        find_task(f"{__name__}.Box.gone")
    with pytest.raises(UnknownTask, match=r"has no 'here\.gone'"):
        find_task(f"{__name__}.here.gone")


def test_unknown_module_is_reported() -> None:
    with pytest.raises(
        UnknownTask, match=r"importing nowhere failed with ModuleNotFoundError"
    ) as caught:
        find_task("nowhere.at_all.task")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_lazy_objects_of_the_module_are_not_evaluated() -> None:
    with pytest.raises(UnknownTask, match=r"has no 'gone'"):
        find_task(f"{__name__}.gone")


def test_object_that_is_no_task_is_reported() -> None:
    with pytest.raises(
        UnknownTask, match=r"is not a task but a function\. Put @task on the function"
    ):
        find_task(f"{__name__}.no_task")


@pytest.mark.parametrize("path", ["", "task", ".task", "a..b", "a.b-c", "a b.c", "a.<locals>.b"])
def test_invalid_path_is_reported(path: str) -> None:
    with pytest.raises(UnknownTask, match=r"is not the name of a task"):
        find_task(path)


def test_task_of_a_module_that_is_not_imported_is_not_looked_up(modules: Path) -> None:
    (modules / "late_one.py").write_text("from stoker import task\n@task\ndef work(): ...\n")
    assert imported_task("late_one.work") is None
    assert "late_one" not in sys.modules
    work = find_task("late_one.work")
    assert imported_task("late_one.work") is work
    assert imported_task("late_one.gone") is None


def test_failing_import_is_reported_with_its_error(modules: Path) -> None:
    (modules / "broken_one.py").write_text("1 / 0\n")
    with pytest.raises(
        UnknownTask, match=r"importing broken_one failed with ZeroDivisionError"
    ) as caught:
        find_task("broken_one.task")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_missing_import_of_a_module_is_named(modules: Path) -> None:
    (modules / "needy_one.py").write_text("import not_installed_here\n")
    with pytest.raises(UnknownTask, match=r"importing needy_one failed.*not_installed_here"):
        find_task("needy_one.task")


def test_missing_import_of_a_package_is_named(modules: Path) -> None:
    (modules / "needy").mkdir()
    (modules / "needy" / "__init__.py").write_text("")
    (modules / "needy" / "tasks.py").write_text("import needy.gone\n")
    with pytest.raises(UnknownTask, match=r"needy.gone"):
        find_task("needy.tasks.task")


def test_module_that_exits_at_import_is_reported(modules: Path) -> None:
    (modules / "exiting_one.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(UnknownTask, match=r"importing exiting_one failed with SystemExit"):
        find_task("exiting_one.task")
