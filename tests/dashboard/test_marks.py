"""Escaping in the template filters whose output is marked as safe."""

import pytest

from stoker.templatetags.stoker_dashboard import code_marked, short_task


@pytest.mark.parametrize("path", ["<i>", "shop.<i>", "<i>.send"])
def test_task_names_are_escaped(path: str) -> None:
    assert "<i>" not in short_task(path)
    assert "&lt;i&gt;" in short_task(path)


@pytest.mark.parametrize("text", ["<i>", "run `<i>`", "`run` <i>"])
def test_text_around_and_between_backticks_is_escaped(text: str) -> None:
    assert "<i>" not in code_marked(text)
    assert "&lt;i&gt;" in code_marked(text)
