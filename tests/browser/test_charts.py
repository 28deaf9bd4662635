"""Charts: a period is chosen by pointer or keys, and opens its jobs."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.window import NARROW, Window

BRUSH = ".brush[aria-label^=Throughput]"


def period_of(window: Window) -> tuple[str, str]:
    query = parse_qs(urlsplit(window.page.url).query)
    return query["since"][0], query["until"][0]


@pytest.mark.slow
def test_dragging_over_a_chart_lists_the_jobs_of_that_time(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/queues/one/?name=mail&last=week")
    chart = page.locator(".chart", has=page.locator(BRUSH))
    box = page.locator(BRUSH).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 50)
    expect(chart.locator(".readout")).to_contain_text("succeeded")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50, steps=3)
    expect(chart.locator(".readout")).to_have_text(re.compile(r"^\w+ \d\d:\d\d to \w+ \d\d:\d\d$"))
    page.mouse.up()
    page.wait_for_url("**/jobs/?queue=mail&since=*")
    since, until = period_of(alice)
    assert since.endswith(":00:00Z")
    assert since < until
    expect(page.get_by_label("Since")).to_have_value(since)


def test_period_of_a_chart_is_chosen_by_keys(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/?last=week")
    brush = page.locator(BRUSH)
    brush.focus()
    for key in ("Home", "ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(brush).to_have_attribute("aria-valuetext", re.compile(r"^\w+ \d\d:00 to \w+ \d\d:00$"))
    expect(brush).to_have_value("3")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/?since=*")
    since, until = period_of(alice)
    assert (int(until[11:13]) - int(since[11:13])) % 24 == 9


def test_chosen_period_is_given_up_with_escape(alice: Window) -> None:
    page = alice.page
    alice.go("/stoker/")
    page.locator(BRUSH).focus()
    page.keyboard.press("Home")
    readout = page.locator(".readout").first
    expect(readout).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(readout).to_be_empty()


def test_labels_of_axes_do_not_overlap_on_a_phone(alice: Window) -> None:
    page = alice.page
    page.set_viewport_size(NARROW)  # type: ignore[arg-type] # a dict of the same keys
    alice.go("/stoker/?last=week")
    overlapping = page.evaluate(
        """[...document.querySelectorAll(".field")].flatMap(field => {
            const labels = [...field.querySelectorAll("text")].filter(one => one.checkVisibility());
            const boxes = labels.map(one => one.getBoundingClientRect());
            return boxes.slice(1).filter((box, at) => box.left < boxes[at].right);
        }).length"""
    )
    assert overlapping == 0
