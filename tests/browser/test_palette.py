"""The command palette in the browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from stoker import queues

from tests.browser.window import NARROW, WIDE, Window


def test_palette_opens_the_typed_page_by_keyboard(alice: Window) -> None:
    from shop import tasks

    page = alice.page
    job = tasks.send_receipt.using(run_after=600).enqueue(4000, to="carol")
    alice.go("/stoker/")
    for key, text, address in (
        ("Control+k", "sched", "**/stoker/schedules/"),
        ("Meta+k", "send_rec", "**/stoker/tasks/one/?name=shop.tasks.send_receipt"),
        ("Control+k", job.id, f"**/stoker/jobs/{job.id}/"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("combobox")).to_be_focused()
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.wait_for_url(address)
    job.cancel()


@pytest.mark.slow
def test_palette_is_a_dialog_with_a_list_of_options(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/queues/")
    button = page.get_by_role("button", name="Go to")
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", NARROW), ("dark", NARROW)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type] # one of its literals
        page.set_viewport_size(size)  # type: ignore[arg-type] # a dict of the same keys
        button.click()
        dialog = page.get_by_role("dialog", name="Go to")
        text = dialog.get_by_role("combobox")
        expect(text).to_be_focused()
        text.fill("e")
        options = dialog.get_by_role("option")
        expect(dialog.get_by_role("listbox")).to_have_attribute("data-text", "e")
        expect(dialog.get_by_role("status")).to_contain_text("found")
        expect(options.nth(0)).to_have_attribute("aria-selected", "true")
        page.keyboard.press("ArrowDown")
        expect(options.nth(1)).to_have_attribute("aria-selected", "true")
        expect(text).to_have_attribute("aria-activedescendant", "palette-1")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        expect(options.last).to_have_attribute("aria-selected", "true")
        assert not alice.violations()
        assert not alice.scrolls_sideways()
        for _ in range(3):
            page.keyboard.press("Tab")
            assert page.evaluate("!document.querySelector('main').contains(document.activeElement)")
        text.focus()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(button).to_be_focused()


@pytest.mark.slow
def test_palette_opens_by_touch_and_finds_what_the_user_may_see(window: Window) -> None:
    queues.pause("mail")
    window.come_as("bob")
    page = window.page
    page.set_viewport_size(NARROW)  # type: ignore[arg-type] # as above
    window.go("/stoker/")
    page.get_by_role("button", name="Go to").click()
    page.get_by_role("combobox").fill("audit")
    expect(page.locator("#palette-says")).to_have_text("Nothing found.")
    page.get_by_role("combobox").fill("mail")
    page.get_by_role("option").filter(has_text="queue").first.click()
    page.wait_for_url("**/queues/one/?name=mail")
    queues.resume("mail")


@pytest.mark.slow
def test_palette_has_no_key_if_keys_are_turned_off(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/queues/")
    page.evaluate("localStorage.setItem('stoker-keys', 'off')")
    page.keyboard.press("Control+k")
    page.get_by_role("button", name="Go to").click()
    expect(page.get_by_role("dialog", name="Go to")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog", name="Go to")).to_be_hidden()
    page.evaluate("localStorage.removeItem('stoker-keys')")


@pytest.mark.slow
def test_palette_opens_without_what_was_found_before(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/queues/")
    button, dialog = page.get_by_role("button", name="Go to"), page.get_by_role("dialog")
    button.click()
    expect(dialog.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Escape")
    page.route("**/palette/**", lambda _: None)  # no answer comes
    button.click()
    expect(dialog).to_be_visible()
    assert dialog.get_by_role("option").count() == 0
    page.unroute_all(behavior="ignoreErrors")
