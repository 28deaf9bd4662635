"""The page of examples/small/live, in a browser: htmx updates the progress of a job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.browser.site import running_site
from tests.browser.window import Window

pytestmark = pytest.mark.slow

COMMAND = ("-m", "examples.small.live", "0")


def test_progress_is_shown_until_the_report_is_there(
    browser: BrowserContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is never loaded again, and the browser has nothing to complain about: the page's
    policy lets it run no script but htmx."""
    monkeypatch.setenv("SMALL_DATABASE", str(tmp_path / "small.sqlite3"))
    with running_site(tmp_path, COMMAND) as address:
        window = Window(browser, address)
        page = window.page
        window.go("/")
        page.evaluate("window.isTheSamePage = true")
        page.get_by_role("button", name="Write the report").click()
        expect(page.get_by_role("status")).to_have_text(re.compile(r"Running: [1-9]\d* %"))
        expect(page.locator(".stoker-message")).to_contain_text("chapter")
        assert not window.violations()
        expect(page.get_by_role("status")).to_have_text("Done")
        expect(page.locator("#report p")).to_have_text("The report has 5 chapters.")
        assert page.locator("[hx-trigger^=every]").count() == 0
        assert page.evaluate("window.isTheSamePage")
        page.close()
    assert not window.complaints
