"""Drives Chromium for the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect, sync_playwright

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
GIVE_UP_MS = 120_000
"""A guard against waiting for ever."""
WIDE = {"width": 1280, "height": 800}
SMALL = {"width": 1000, "height": 660}
NARROW = {"width": 375, "height": 812}
WIDTHS = (1440, 768, 375)
"""Widths in px at which each page is looked at: a desk, a tablet, a phone."""
SCHEMES = ("light", "dark")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def chromium() -> str:
    """Return the path of Chromium, or skip the test."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = Path(__file__).parents[2] / ".venv" / ".no-chromium"
        why = reason.read_text().strip() if reason.exists() else "run `make test` as root on Debian"
        pytest.skip(f"there is no Chromium: {why}")
    return found


@contextmanager
def open_browser(folder: Path) -> Iterator[BrowserContext]:
    """Open a browser with a profile of its own."""
    # Playwright runs an event loop in this thread; the tests' queries do not run in it.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            folder, executable_path=chromium(), args=list(FLAGS), viewport=WIDE, headless=True
        )
        context.set_default_timeout(GIVE_UP_MS)
        expect.set_options(timeout=GIVE_UP_MS)
        yield context
        context.close()


class Window:
    """A page in the browser, and the errors that it logs."""

    def __init__(self, context: BrowserContext, site: str) -> None:
        self.site = site
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def go(self, path: str) -> None:
        response = self.page.goto(self.site + path)
        assert response is not None
        assert response.status == 200, f"{path}: {response.status}"

    def sign_in(self, name: str, password: str) -> None:
        """Sign in on the login page."""
        self.page.context.clear_cookies()
        self.go("/accounts/login/?next=/stoker/")
        self.page.fill("[name=username]", name)
        self.page.fill("[name=password]", password)
        self.page.click("button")
        self.page.wait_for_url("**/stoker/")

    def come_as(self, name: str) -> None:
        """Open a session for that user without the login page."""
        client = Client()
        client.force_login(User.objects.get(username=name))
        value = client.cookies[settings.SESSION_COOKIE_NAME].value
        self.page.context.clear_cookies()
        self.page.context.add_cookies(
            [{"name": settings.SESSION_COOKIE_NAME, "value": value, "url": self.site}]
        )

    def violations(self, *rules: str, within: str = "html") -> list[str]:
        """Return what axe finds by these rules, or by all: the page must be usable by those who
        cannot see or point."""
        if not self.page.evaluate("Boolean(window.axe)"):
            self.page.evaluate(AXE_FILE_PATH.read_text())
        wanted = {"runOnly": list(rules or RULES), "resultTypes": ["violations"]}
        run = "([within, wanted]) => axe.run(within, wanted)"
        found: Any = self.page.evaluate(run, [within, wanted])
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
            for one in found["violations"]
        ]

    def look(self, folder: Path, name: str, within: str = "html") -> list[str]:
        """Take pictures of the page in all widths, light and dark. Return what is wrong: what axe
        finds within an element, buttons out of view, and pages that scroll sideways."""
        folder.mkdir(parents=True, exist_ok=True)
        wrong = []
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            for scheme in SCHEMES:
                self.page.emulate_media(color_scheme=scheme)
                # The admin's colours change slowly, and axe would measure those in between. Waiting
                # for them could take for ever: animations stand still if the page is not painted.
                self.page.evaluate("document.getAnimations().forEach(one => one.finish())")
                self.page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
                rules = () if scheme == "light" else ("color-contrast",)
                found = self.violations(*rules, within=within)
                wrong += [f"{name} at {width} px, {scheme}: {one}" for one in found]
            if self.scrolls_sideways():
                wrong.append(f"{name} at {width} px scrolls sideways")
            wrong += [f"{name} at {width} px: {one} is out of view" for one in self.out_of_view()]
        return wrong

    def out_of_view(self) -> list[str]:
        """Return the visible buttons that lie beyond the edge of the window."""
        found: Any = self.page.evaluate(
            """() => [...document.querySelectorAll("#main button, #main .button, #main summary")]
                .filter(one => one.checkVisibility({visibilityProperty: true}))
                .filter(one => one.getBoundingClientRect().right > innerWidth)
                .map(one => one.textContent.trim())"""
        )
        return [str(one) for one in found]

    def scrolls_sideways(self) -> bool:
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )
