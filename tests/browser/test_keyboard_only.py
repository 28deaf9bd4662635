"""Six tasks of an operator with the keyboard alone, and the number of key presses of each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Locator, expect

from stoker import every, queues, schedules
from stoker.logs.lines import StoredLine, pack_lines
from stoker.models import DeadLetter, Job, LogChunk, PausedQueue

from tests.browser.window import Window
from tests.cluster.clusters import ProcessCluster, wait_for

MOST_TABS = 60
FOCUS_IS_VISIBLE = """() => {
  const node = document.activeElement;
  if (!node || node === document.body) return false;
  const box = node.getBoundingClientRect(), style = getComputedStyle(node);
  const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return node.matches(":focus-visible") && isMarked && box.width > 0 && box.bottom > 0
    && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
}"""


class Keyboard:
    """Presses keys and counts them. After each key that moves the focus, the focus is visible."""

    def __init__(self, window: Window) -> None:
        self.page = window.page
        self.presses = 0

    def press(self, key: str) -> None:
        self.presses += 1
        self.page.keyboard.press(key)

    def go(self, keys: str, address: str) -> None:
        """Press keys one after the other, and wait for the page that they open."""
        for key in keys:
            self.press(key)
        self.page.wait_for_url(address)

    def type(self, text: str) -> None:
        for character in text:
            self.press(character)

    def tab_to(self, wanted: Locator) -> None:
        """Press Tab until this element is focused."""
        for _ in range(MOST_TABS):
            self.press("Tab")
            assert self.page.evaluate(FOCUS_IS_VISIBLE), self.page.evaluate(
                "document.activeElement.outerHTML.slice(0, 300)"
            )
            if wanted.evaluate("node => node === document.activeElement"):
                return
        raise AssertionError(f"Tab does not reach {wanted}")

    def enter(self, address: str) -> None:
        assert self.page.evaluate(FOCUS_IS_VISIBLE)
        self.press("Enter")
        self.page.wait_for_url(address)

    def jump(self, text: str, address: str) -> None:
        """Go there by the palette."""
        self.press("Control+k")
        expect(self.page.get_by_role("combobox")).to_be_focused()
        self.type(text)
        expect(self.page.get_by_role("listbox")).to_have_attribute("data-text", text)
        self.enter(address)


@pytest.fixture
def keyboard(alice: Window) -> Keyboard:
    alice.go("/stoker/")
    return Keyboard(alice)


@pytest.fixture
def paused() -> Iterator[None]:
    """Pause a queue for the jobs of a test, which wait in it."""
    queues.pause("by-hand")
    yield
    queues.resume("by-hand")


def test_job_is_found_by_an_argument(keyboard: Keyboard, paused: None) -> None:
    from shop import tasks

    jobs = [
        tasks.send_receipt.using(queue_name="by-hand").enqueue(7000 + n, to="erin")
        for n in range(3)
    ]
    page = keyboard.page
    keyboard.go("gj", "**/stoker/jobs/")
    keyboard.press("/")
    expect(page.locator("main input[type=search]")).to_be_focused()
    keyboard.type("order=7001")
    keyboard.press("Enter")
    page.wait_for_url("**/jobs/?*q=order*")
    keyboard.press("j")
    keyboard.enter(f"**/jobs/{jobs[1].id}/")
    for job in jobs:
        job.cancel()
    assert keyboard.presses <= 20


@pytest.mark.slow
def test_dead_letter_is_opened_and_requeued(keyboard: Keyboard, cluster: ProcessCluster) -> None:
    from shop import tasks

    job = tasks.charge_card.enqueue(7010, "9.90 EUR")
    letters = DeadLetter.objects.filter(job_id=job.id)
    wait_for(letters.exists)
    queues.pause("payments")
    page = keyboard.page
    keyboard.go("gd", "**/stoker/dead-letters/")
    row = page.locator(f'tr:has(a[href="/stoker/dead-letters/{letters.get().pk}/"])')
    while not row.locator("a:focus").count():
        keyboard.press("j")
        assert page.evaluate(FOCUS_IS_VISIBLE)
        assert keyboard.presses < MOST_TABS
    keyboard.enter(f"**/dead-letters/{letters.get().pk}/")
    keyboard.tab_to(page.get_by_role("button", name="Requeue"))
    keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("Requeued as job")
    assert letters.get().state == DeadLetter.State.REQUEUED
    tasks.mend()
    queues.resume("payments")


@pytest.mark.slow
def test_queue_is_paused_and_resumed(keyboard: Keyboard) -> None:
    page = keyboard.page
    keyboard.jump("photos", "**/queues/one/?name=photos")
    summary = page.locator("#ask-pause summary")
    keyboard.tab_to(summary)
    keyboard.press("Enter")
    keyboard.tab_to(page.locator("#ask-pause input[name=because]"))
    keyboard.type("paper")
    keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("The queue photos is paused")
    assert PausedQueue.objects.get(queue="photos").because == "paper"
    keyboard.tab_to(page.get_by_role("button", name="Resume"))
    keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("resumed")
    assert not PausedQueue.objects.filter(queue="photos").exists()


@pytest.mark.slow
def test_schedule_is_run_now(keyboard: Keyboard, cluster: ProcessCluster) -> None:
    from shop import tasks

    schedules.create("count the boxes", tasks.pack, every(days=1, args=[7020, "box"]))
    before = Job.objects.filter(task="shop.tasks.pack").count()
    page = keyboard.page
    keyboard.jump("count the", "**/schedules/*/")
    keyboard.tab_to(page.get_by_role("button", name="Run now"))
    keyboard.press("Enter")
    page.wait_for_url("**/jobs/*/")
    assert Job.objects.filter(task="shop.tasks.pack").count() == before + 1
    schedules.delete("count the boxes")


@pytest.mark.slow
def test_waiting_job_is_cancelled(keyboard: Keyboard, paused: None) -> None:
    from shop import tasks

    job = tasks.send_receipt.using(queue_name="by-hand").enqueue(7030, to="erin")
    page = keyboard.page
    keyboard.jump(job.id, f"**/jobs/{job.id}/")
    keyboard.tab_to(page.locator("#ask-cancel summary"))
    keyboard.press("Enter")
    keyboard.tab_to(page.locator("#ask-cancel form button"))
    keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("cancelled")
    assert Job.objects.get(pk=job.id).status == Job.Status.CANCELLED


@pytest.mark.slow
def test_log_of_a_job_is_read(keyboard: Keyboard, paused: None) -> None:
    from shop import tasks

    job = tasks.send_receipt.using(queue_name="by-hand").enqueue(7040, to="erin")
    LogChunk.objects.create(
        job_id=job.id,
        attempt=1,
        lines=pack_lines([StoredLine(1000 * n, "INFO", "shop", f"line {n}") for n in range(100)]),
        keep_until=timezone.now() + timedelta(days=1),
    )
    page = keyboard.page
    keyboard.jump(job.id, f"**/jobs/{job.id}/")
    log = page.get_by_role("region", name="Log")
    keyboard.tab_to(log)
    expect(log).to_contain_text("line 99")
    before = log.evaluate("node => node.scrollTop")
    keyboard.press("PageUp")
    page.wait_for_function("top => document.querySelector('.log').scrollTop < top", arg=before)
    job.cancel()
