"""Looks and accessibility of each page: screenshots are kept in reports/dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.scenes import Scenes
from tests.browser.window import NARROW, SMALL, WIDE, Window
from tests.cluster.clusters import ProcessCluster

pytestmark = pytest.mark.slow

COLOURFUL = ("overview", "jobs", "job-failed", "dead-letters", "schedule", "workflow")
"""Together these pages use all colours."""
PICTURED = "STOKER_DOCS_PICTURES"
"""If set, the pictures of the documentation are taken again."""
DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "images"
DOCUMENTED = {
    "overview": "overview",
    "job-failed": "job",
    "dead-letters": "dead-letters",
    "schedule": "schedule",
    "workflow": "workflow",
}
PICTURES = Path(__file__).resolve().parents[2] / "reports" / "dashboard"


@pytest.fixture(scope="module")
def scenes(shop: None, cluster: ProcessCluster) -> Iterator[Scenes]:
    scenes = Scenes()
    yield scenes
    scenes.end()


@pytest.mark.parametrize("name", Scenes.names())
def test_page_is_accessible_and_fits_a_phone(name: str, scenes: Scenes, alice: Window) -> None:
    """In light, dark and narrow windows axe finds no fault, nothing scrolls sideways, and the
    strict Content-Security-Policy is not violated."""
    page = alice.page
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(WIDE)
    alice.go(scenes.address_of(name))
    page.screenshot(path=PICTURES / f"{name}-light.png", full_page=True)
    if name in DOCUMENTED and PICTURED in os.environ:
        page.set_viewport_size(SMALL)
        page.screenshot(path=DOCUMENTATION / f"dashboard-{DOCUMENTED[name]}.png")
        page.set_viewport_size(WIDE)
    assert not alice.violations()
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=PICTURES / f"{name}-dark.png", full_page=True)
    if name in COLOURFUL:
        assert not alice.violations("color-contrast")
    page.set_viewport_size(NARROW)
    page.screenshot(path=PICTURES / f"{name}-phone.png")
    assert not alice.scrolls_sideways()
