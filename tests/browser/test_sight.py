"""Looks and accessibility of each page: screenshots are kept in reports/dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.scenes import Scenes
from tests.browser.window import SMALL, Window
from tests.cluster.clusters import ProcessCluster

pytestmark = pytest.mark.slow

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
def test_page_is_accessible_and_fits_each_width(name: str, scenes: Scenes, alice: Window) -> None:
    """At each width, in light and dark, axe finds no fault, nothing scrolls sideways, and the
    strict Content-Security-Policy is not violated."""
    alice.go(scenes.address_of(name))
    assert not alice.look(PICTURES, name)
    if name in DOCUMENTED and PICTURED in os.environ:
        alice.page.emulate_media(color_scheme="light")
        alice.page.set_viewport_size(SMALL)
        alice.page.screenshot(path=DOCUMENTATION / f"dashboard-{DOCUMENTED[name]}.png")
