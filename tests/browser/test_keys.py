"""The dashboard by the keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from stoker import queues

from tests.browser.window import NARROW, WIDE, Window


@pytest.fixture
def waiting(alice: Window) -> Iterator[list[str]]:
    """Let three jobs wait."""
    from shop import tasks

    queues.pause("mail")
    jobs = [tasks.send_receipt.enqueue(3000 + number, to="carol") for number in range(3)]
    yield [job.id for job in reversed(jobs)]
    for job in jobs:
        job.cancel()
    queues.resume("mail")


def test_keys_move_through_a_list_and_open_a_line(alice: Window, waiting: list[str]) -> None:
    page = alice.page
    alice.go("/stoker/jobs/?state=ready")
    focused = page.locator("tr:focus-within")
    for key, job_id in (("j", waiting[0]), ("j", waiting[1]), ("j", waiting[2]), ("k", waiting[1])):
        page.keyboard.press(key)
        expect(focused).to_have_attribute("data-key", job_id)
    page.keyboard.press("x")
    expect(focused.locator("input[type=checkbox]")).to_be_checked()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{waiting[1]}/")


def test_keys_lead_to_pages_and_to_the_search(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/")
    page.keyboard.type("gj")
    page.wait_for_url("**/stoker/jobs/")
    page.keyboard.press("/")
    search = page.get_by_label("Search")
    expect(search).to_be_focused()
    page.keyboard.type("gq?/j")
    expect(search).to_have_value("gq?/j")
    expect(page.locator("#keys")).to_be_hidden()
    page.locator("main").focus()
    page.keyboard.press("Control+j")
    page.keyboard.type("ga")
    page.wait_for_url("**/stoker/audit/")


@pytest.mark.slow
def test_help_shows_the_keys_and_turns_them_off(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/queues/")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_be_visible()
    for scheme, size in (("light", WIDE), ("dark", NARROW)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type] # one of its literals
        page.set_viewport_size(size)  # type: ignore[arg-type] # a dict of the same keys
        assert not alice.violations()
        assert not alice.scrolls_sideways()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Use these keys").uncheck()
    page.get_by_role("button", name="Close").click()
    alice.go("/stoker/queues/")
    page.keyboard.type("gj?")
    expect(dialog).to_be_hidden()
    assert page.url.endswith("/queues/")
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Use these keys").check()
    page.keyboard.press("Escape")
    page.keyboard.type("gj")
    page.wait_for_url("**/stoker/jobs/")
