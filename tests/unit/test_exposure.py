"""Tasks that can be enqueued from outside by their names."""

from typing import Any

import pytest

from stoker import task
from stoker.exceptions import InvalidTaskOption, UnknownTask
from stoker.tasks.registry import exposed_task, exposed_tasks

HERE = __name__


@task
def inner() -> None: ...


@task(exposed=True)
def open_by_path() -> None: ...


@task(exposed="thumbnails.make")
def open_by_name() -> None: ...


def test_only_exposed_tasks_are_found() -> None:
    assert exposed_task(f"{HERE}.open_by_path") is open_by_path
    assert exposed_task("thumbnails.make") is open_by_name
    for name in (f"{HERE}.inner", f"{HERE}.open_by_name", "tests.app.tasks.nowhere", ""):
        with pytest.raises(UnknownTask, match="No task is exposed as"):
            exposed_task(name)


def test_variation_of_a_task_does_not_replace_it() -> None:
    open_by_path.using(priority=7)
    assert exposed_task(f"{HERE}.open_by_path").priority == 0


def test_reloaded_module_replaces_its_tasks() -> None:
    def open_by_name() -> None: ...

    open_by_name.__module__, open_by_name.__qualname__ = HERE, "open_by_name"
    old = exposed_tasks()["thumbnails.make"]
    fresh = task(exposed="thumbnails.make")(open_by_name)
    try:
        assert exposed_task("thumbnails.make") is fresh
    finally:
        task(exposed="thumbnails.make")(old.func)


def test_second_task_with_the_same_name_is_refused() -> None:
    with pytest.raises(InvalidTaskOption, match="is exposed under that name already"):
        task(exposed="thumbnails.make")(test_only_exposed_tasks_are_found)


@pytest.mark.parametrize("value", ["", "a/b", "a b", "\x00", "x" * 256, 1, "-x"])
def test_name_that_is_invalid_in_a_url_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTaskOption, match="write True, False, or a name"):
        task(exposed=value)(test_only_exposed_tasks_are_found)
