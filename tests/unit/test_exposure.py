"""Tasks that may be enqueued from outside: by name, and only those."""

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


def test_only_who_says_so_is_exposed() -> None:
    assert exposed_task(f"{HERE}.open_by_path") is open_by_path
    assert exposed_task("thumbnails.make") is open_by_name
    for name in (f"{HERE}.inner", f"{HERE}.open_by_name", "tests.app.tasks.nowhere", ""):
        with pytest.raises(UnknownTask, match="No task is exposed as"):
            exposed_task(name)


def test_a_variation_of_a_task_does_not_take_its_place() -> None:
    open_by_path.using(priority=7)
    assert exposed_task(f"{HERE}.open_by_path").priority == 0


def test_a_module_that_is_loaded_again_brings_its_own() -> None:
    def open_by_name() -> None: ...

    open_by_name.__module__, open_by_name.__qualname__ = HERE, "open_by_name"
    old = exposed_tasks()["thumbnails.make"]
    fresh = task(exposed="thumbnails.make")(open_by_name)
    try:
        assert exposed_task("thumbnails.make") is fresh
    finally:
        task(exposed="thumbnails.make")(old.func)


def test_two_tasks_cannot_have_one_name() -> None:
    with pytest.raises(InvalidTaskOption, match="is exposed under that name already"):
        task(exposed="thumbnails.make")(test_only_who_says_so_is_exposed)


@pytest.mark.parametrize("value", ["", "a/b", "a b", "\x00", "x" * 256, 1, "-x"])
def test_a_name_can_stand_in_an_address(value: Any) -> None:
    with pytest.raises(InvalidTaskOption, match="write True, False, or a name"):
        task(exposed=value)(test_only_who_says_so_is_exposed)
