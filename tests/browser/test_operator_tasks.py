"""Tasks of an operator take at most six clicks, beginning at the front page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from stoker import queues
from stoker.jobs.states import JobState
from stoker.models import DeadLetter, Job

from tests.browser.test_stories import shop_tasks
from tests.browser.window import Window
from tests.cluster.clusters import ProcessCluster, wait_for

MOST_CLICKS = 6


class Hand:
    """Uses the page as an operator does, and counts the clicks."""

    def __init__(self, window: Window) -> None:
        self.page = window.page
        self.clicks = 0

    def click(self, target: Locator) -> None:
        self.clicks += 1
        target.click()

    def follow(self, name: str, within: str = "body") -> None:
        """Click a link."""
        self.click(self.page.locator(within).get_by_role("link", name=name).first)

    def press(self, name: str) -> None:
        """Click a button."""
        self.click(self.page.get_by_role("button", name=name, exact=True).first)


@contextmanager
def counted(window: Window, capsys: pytest.CaptureFixture[str], task: str) -> Iterator[Hand]:
    """Begin at the front page, print clicks and seconds, and check the number of clicks."""
    window.go("/stoker/")
    hand, begin = Hand(window), time.monotonic()
    yield hand
    with capsys.disabled():
        print(f"\n{task}: {hand.clicks} clicks, {time.monotonic() - begin:.1f} s")
    assert hand.clicks <= MOST_CLICKS


def test_job_that_waits_is_explained_and_released(
    alice: Window, cluster: ProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    queues.pause("crates", by="bob", because="the carrier is on strike")
    cluster.wait_for_heartbeats(2)
    job = shop_tasks().pack.using(queue_name="crates").enqueue(7011, "anchor")
    with counted(alice, capsys, "find why a job waits and release it") as hand:
        hand.follow("Jobs", "nav")
        hand.page.get_by_label("Search").fill("order=7011")
        hand.press("Search")
        hand.follow("pack", "#found")
        expect(hand.page.locator("#why")).to_contain_text("the carrier is on strike")
        hand.press("Resume")
        expect(hand.page.locator("#job-head .state")).to_have_text("successful")
    job.refresh()
    assert job.state == JobState.SUCCESSFUL


@pytest.mark.slow
def test_failures_of_the_last_hour_are_requeued_with_another_argument(
    alice: Window, cluster: ProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"missing-barn-{number}.jpg" for number in range(200)]
    jobs = shop_tasks().resize_photo.enqueue_many([((name,), {}) for name in names])
    letters = DeadLetter.objects.filter(job_id__in=[job.id for job in jobs])
    wait_for(lambda: letters.count() == len(jobs), cluster.tail)
    with counted(alice, capsys, "requeue 200 failures with another argument") as hand:
        hand.follow("Dead letters", "nav")
        hand.click(hand.page.locator("summary", has_text="Filters"))
        hand.page.get_by_label("Since").fill("1h")
        hand.page.get_by_label("Search").fill("missing-barn")
        hand.press("Search")
        hand.follow("All that match…")
        expect(hand.page.locator("h1")).to_contain_text("200 open dead letters")
        hand.page.get_by_label("other arguments").fill('{"name": "found-{name}"}')
        hand.press("Preview")
        expect(hand.page.locator("main")).to_contain_text("name='found-missing-barn-0.jpg'")
        hand.press("Requeue")
        expect(hand.page.locator("#bulk-head")).to_contain_text("200 of 200 dead letters requeued.")
    wait_for(lambda: letters.filter(state="resolved").count() == len(jobs), cluster.tail)


@pytest.mark.slow
def test_log_of_a_running_job_is_seen(
    alice: Window, cluster: ProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    job = shop_tasks().print_label.enqueue(7012, seconds=3600.0)
    with counted(alice, capsys, "see the log of a running job") as hand:
        hand.follow("Jobs", "nav")
        hand.follow("Running", "#states")
        row = hand.page.locator(f'#found tr[data-key="{job.id}"]')
        hand.click(row.get_by_role("link").first)
        expect(hand.page.locator("#log")).to_contain_text("Printing page 12 of the labels")
        expect(hand.page.locator("#job-head .state")).to_have_text("running")
    job.cancel()


@pytest.mark.slow
def test_fifty_waiting_jobs_are_moved_to_another_queue(
    alice: Window, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("barrels", "letters"):
        queues.pause(name)
    task: Any = shop_tasks().engrave.using(queue_name="barrels")
    jobs = task.enqueue_many([((number,), {}) for number in range(50)])
    moved = Job.objects.filter(pk__in=[job.id for job in jobs], queue="letters")
    with counted(alice, capsys, "move 50 waiting jobs to another queue") as hand:
        hand.follow("Queues", "nav")
        hand.follow("barrels", "#queues")
        hand.follow("All its jobs")
        hand.click(hand.page.get_by_label("Choose all jobs of this page"))
        hand.click(hand.page.get_by_text("With the chosen jobs"))
        hand.page.locator("#in-bulk").get_by_label("Queue").fill("letters")
        hand.press("Move")
        expect(hand.page.get_by_role("status").first).to_contain_text("50 of 50 jobs moved.")
    assert moved.count() == 50
    for job in jobs:
        job.cancel()
    for name in ("barrels", "letters"):
        queues.resume(name)
