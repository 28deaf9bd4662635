"""How each page looks, and whether everybody can use it: pictures are kept in reports/dashboard."""

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
"""Between them they have all colours that there are."""
PICTURED = "STOKER_DOCS_PICTURES"
"""Set, the pictures of the documentation are taken anew."""
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
def test_a_page_is_for_everybody(name: str, scenes: Scenes, alice: Window) -> None:
    """In light and dark, on a desk and on a phone: axe finds nothing, nothing scrolls sideways, and
    the strictest policy has nothing to complain of."""
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
