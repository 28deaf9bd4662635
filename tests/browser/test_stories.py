"""How people use the dashboard, in a browser with a running cluster."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from stoker import queues
from stoker.jobs.states import JobState
from stoker.models import DeadLetter, Job

from tests.browser.conftest import PASSWORD
from tests.browser.site import WSGI, running_site
from tests.browser.window import Window
from tests.cluster.clusters import WAIT_SECONDS, ProcessCluster, wait_for


def shop_tasks():  # type: ignore[no-untyped-def] # on the path only where these tests run
    from shop import tasks

    return tasks


@pytest.mark.slow
def test_failures_of_one_kind_are_requeued_with_another_argument(
    alice: Window, cluster: ProcessCluster
) -> None:
    """Found by their error, previewed, requeued with another amount and undone: six clicks each."""
    page, charge_card = alice.page, shop_tasks().charge_card
    orders = range(2041, 2044)
    ids = [charge_card.enqueue(order, "1.00 pounds").id for order in orders]
    wait_for(lambda: DeadLetter.objects.filter(job_id__in=ids).count() == len(ids))
    queues.pause("payments")

    alice.go("/stoker/")
    page.get_by_role("link", name="Dead letters").first.click()
    page.get_by_label("Search").fill("1.00 pounds")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="All that match…").click()
    expect(page.locator("h1")).to_contain_text("3 open dead letters")
    page.get_by_label("Requeue with other arguments").fill('{"amount": "{amount} sterling"}')
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("main")).to_contain_text("amount='1.00 pounds sterling'")
    page.get_by_role("button", name="Requeue").click()
    expect(page.locator("#bulk-head .state")).to_have_text("done")
    expect(page.locator("#bulk-head")).to_contain_text("3 of 3 dead letters requeued.")
    letters = DeadLetter.objects.filter(job_id__in=ids)
    assert {one.state for one in letters} == {"requeued"}

    page.locator("#bulk-head summary", has_text="Undo").click()
    page.locator("#ask-undo button").click()
    wait_for(lambda: {one.state for one in letters.all()} == {"open"})
    queues.resume("payments")


def test_failed_job_is_found_and_requeued_until_it_succeeds(
    alice: Window, cluster: ProcessCluster
) -> None:
    """A payment fails, the bank answers again, and one click pays the order without a reload."""
    page = alice.page
    job = shop_tasks().charge_card.enqueue(1041, "19.90 EUR")
    wait_for(lambda: DeadLetter.objects.filter(job_id=job.id).exists())

    alice.go("/stoker/")
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="Failed").click()
    page.locator(f'a[href="/stoker/jobs/{job.id}/"]').click()
    expect(page.locator("h1")).to_contain_text("charge_card")
    expect(page.locator("#life")).to_contain_text("the bank did not answer: order 1041")
    raised = page.locator("#life pre").filter(has_text="raise BankUnreachable")
    expect(raised.last).to_be_visible()
    expect(page.locator("#given")).to_contain_text("1041")

    shop_tasks().mend()
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_role("status").first).to_contain_text("Requeued as job")
    page.get_by_role("link", name="That job").first.click()
    page.wait_for_url(lambda address: job.id not in address)
    expect(page.locator("#job-head .state")).to_have_text("successful")
    expect(page.locator("#value")).to_contain_text("paid 19.90 EUR")
    assert DeadLetter.objects.get(job_id=job.id).state == DeadLetter.State.RESOLVED


def test_job_page_is_updated_by_events(alice: Window, cluster: ProcessCluster) -> None:
    """Server-sent events update the open page."""
    page = alice.page
    job = shop_tasks().engrave.enqueue(7)
    alice.go(f"/stoker/jobs/{job.id}/")
    page.evaluate("window.isTheSamePage = true")
    expect(page.locator("#job-head .state")).to_have_text("running")
    expect(page.locator("#why")).to_be_visible()
    shop_tasks().mend()
    expect(page.locator("#job-head .state")).to_have_text("successful")
    expect(page.locator("#value")).to_contain_text("engraved 7")
    expect(page.locator("#why")).to_be_hidden()
    assert page.evaluate("window.isTheSamePage")
    assert page.evaluate("document.documentElement.dataset.follows") == "by events"


def keys_of_rows(window: Window) -> list[str]:
    rows = window.page.locator("#found tbody tr")
    return [str(key) for key in rows.evaluate_all("rows => rows.map(row => row.dataset.key)")]


@pytest.mark.slow
def test_rows_of_a_list_stay_until_the_new_ones_are_asked_for(
    alice: Window, cluster: ProcessCluster
) -> None:
    """The row of a running job becomes successful at its place, also when the first page of the
    list would not have it any more."""
    page = alice.page
    job = shop_tasks().engrave.enqueue(9)
    alice.go("/stoker/jobs/")
    before = keys_of_rows(alice)
    assert before[0] == job.id
    row = page.locator(f'#found tr[data-key="{job.id}"]')
    expect(row.locator(".state")).to_have_text("running")
    for number in range(60):
        shop_tasks().pack.enqueue(number, "lamp")
    expect(page.locator("#newer")).to_have_text("60 new")
    assert keys_of_rows(alice) == before
    shop_tasks().mend()
    expect(row.locator(".state")).to_have_text("successful")
    assert keys_of_rows(alice) == before
    page.locator("#newer").click()
    expect(row).to_have_count(0)
    expect(page.locator("#newer")).to_be_hidden()
    assert len(keys_of_rows(alice)) == 50


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/stoker/", "/stoker/jobs/", "/stoker/queues/"])
def test_open_page_transfers_at_most_50_kb_in_half_a_minute(
    alice: Window, cluster: ProcessCluster, path: str
) -> None:
    """Four jobs a second run meanwhile. The page is read whole once, before."""
    page = alice.page
    sizes: list[int] = []
    devtools = page.context.new_cdp_session(page)
    devtools.send("Network.enable")
    devtools.on("Network.loadingFinished", lambda facts: sizes.append(facts["encodedDataLength"]))
    alice.go(path)
    sizes.clear()
    for number in range(120):
        shop_tasks().pack.enqueue(number, "rope")
        page.wait_for_timeout(250)
    assert 0 < sum(sizes) < 50_000


@pytest.mark.slow
def test_rows_that_leave_a_list_keep_their_places(alice: Window, cluster: ProcessCluster) -> None:
    page = alice.page
    queues.pause("parcels")
    cluster.wait_for_heartbeats(2)
    jobs = [shop_tasks().pack.using(queue_name="parcels").enqueue(1, "rope") for _ in range(3)]
    alice.go("/stoker/jobs/?state=READY&queue=parcels")
    before = keys_of_rows(alice)
    assert len(before) == 3
    jobs[0].cancel()
    expect(page.locator("#found tr.gone")).to_have_count(1)
    later = shop_tasks().pack.using(queue_name="parcels").enqueue(2, "rope")
    expect(page.locator("#newer")).to_have_text("1 new")
    assert keys_of_rows(alice) == before
    page.locator("#newer").click()
    expect(page.locator("#found tr.gone")).to_have_count(0)
    assert set(keys_of_rows(alice)) == {jobs[1].id, jobs[2].id, later.id}
    for job in (*jobs[1:], later):
        job.cancel()
    queues.resume("parcels")


@pytest.mark.slow
def test_job_page_is_updated_by_polling_without_asgi(
    db: None,
    browser: object,
    cluster: ProcessCluster,
    tmp_path: object,
) -> None:
    """The site runs under WSGI, which has no events."""
    job = shop_tasks().engrave.enqueue(8)
    with running_site(tmp_path, WSGI) as address:  # type: ignore[arg-type] # a path
        window = Window(browser, address)  # type: ignore[arg-type] # a context
        window.sign_in("alice", PASSWORD)
        window.go(f"/stoker/jobs/{job.id}/")
        expect(window.page.locator("#job-head .state")).to_have_text("running")
        shop_tasks().mend()
        expect(window.page.locator("#job-head .state")).to_have_text("successful")
        assert window.page.evaluate("document.documentElement.dataset.follows") == "by asking"
        window.page.close()
        assert not window.complaints


def test_queue_is_paused_and_resumed(alice: Window, cluster: ProcessCluster) -> None:
    page = alice.page
    shop_tasks().send_receipt.enqueue(1, to="carol").wait(WAIT_SECONDS)
    alice.go("/stoker/queues/one/?name=mail")
    page.locator("#ask-pause summary").click()
    page.locator("#ask-pause input[name=because]").fill("the provider is down")
    page.locator("#ask-pause button").click()
    expect(page.get_by_text("The queue mail is paused since")).to_be_visible()
    expect(page.get_by_text("Paused by alice")).to_contain_text("the provider is down")
    wait_for(lambda: queues.get("mail").paused is not None)

    job = held_back()
    expect(page.locator("#next")).to_contain_text("send_receipt")
    assert Job.objects.get(pk=job.id).status is None
    alice.go(f"/stoker/jobs/{job.id}/")
    expect(page.locator("#why")).to_contain_text("paused")

    alice.go("/stoker/queues/one/?name=mail")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("The queue mail is resumed")).to_be_visible()
    assert job.wait(WAIT_SECONDS) == "sent to dave"
    assert job.state == JobState.SUCCESSFUL


def held_back() -> Any:
    """Return a job that the cluster has passed over: it started a later job of another queue.
    Before the cluster knows of the pause, it may still start jobs."""
    job = shop_tasks().send_receipt.enqueue(2, to="dave")
    shop_tasks().pack.enqueue(1, "lamp").wait(WAIT_SECONDS)
    job.refresh()
    return job if job.state == JobState.READY else held_back()


def test_viewer_cannot_pause_a_queue(window: Window, cluster: ProcessCluster) -> None:
    page = window.page
    window.sign_in("bob", PASSWORD)
    window.go("/stoker/queues/one/?name=mail")
    button = page.get_by_role("button", name="Pause").first
    expect(button).to_be_disabled()
    # A form sent by hand is refused, too.
    status = page.evaluate(
        """async () => {
            const token = document.cookie.match(/csrftoken=([^;]+)/);
            const answer = await fetch("/stoker/queues/pause/", {method: "POST",
                headers: {"X-CSRFToken": token ? token[1] : "",
                          "Content-Type": "application/x-www-form-urlencoded"},
                body: "queue=mail"});
            return [answer.status, await answer.text()];
        }"""
    )
    assert status[0] == 403
    assert "stoker.pause_queue" in status[1]
    assert queues.get("mail").paused is None
    window.complaints[:] = [one for one in window.complaints if "403" not in one]


@pytest.mark.slow
def test_requeue_of_a_fault_is_undone(alice: Window, cluster: ProcessCluster) -> None:
    """One click requeues all dead letters of the fault, another one undoes it before they run."""
    page = alice.page
    jobs = [shop_tasks().wrap.enqueue(number) for number in range(3)]
    wait_for(lambda: DeadLetter.objects.filter(job_id__in=[job.id for job in jobs]).count() == 3)
    queues.pause("wrapping")
    cluster.wait_for_heartbeats(2)
    alice.go("/stoker/dead-letters/")
    row = page.locator("#faults tr", has_text="OutOfPaper")
    row.get_by_role("button", name="Requeue all").click()
    expect(page.get_by_text("3 of 3 dead letters requeued.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("3 of 3 requeues undone.")).to_be_visible()
    states = DeadLetter.objects.filter(job_id__in=[job.id for job in jobs])
    assert {one.state for one in states} == {"open"}

    row = page.locator("#faults tr", has_text="OutOfPaper")
    row.locator("summary").click()
    row.get_by_label("Reason").fill("they were deleted")
    row.locator("details button").click()
    expect(page.get_by_text("3 of 3 dead letters discarded.")).to_be_visible()
    assert {one.closed_because for one in states.all()} == {"they were deleted"}
    queues.resume("wrapping")


def test_dashboard_works_by_keyboard(alice: Window, cluster: ProcessCluster) -> None:
    """From the skip link to a pause that is undone."""
    page = alice.page
    alice.go("/stoker/")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()

    alice.go("/stoker/")
    seen = []
    for _ in range(18):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert seen[2:5] == ["Overview", "Jobs", "Queues"], seen
    pages = ("Guards", "Dead letters", "Schedules", "Workflows", "Bulk", "Clusters", "Audit")
    for name in (*pages, "Live", "Dark"):
        assert name in seen, seen

    shop_tasks().send_receipt.enqueue(3).wait(WAIT_SECONDS)
    alice.go("/stoker/queues/one/?name=mail")
    why = page.locator("#ask-pause input[name=because]")
    page.locator("#ask-pause summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(why).to_be_focused()
    page.keyboard.type("lunch")
    # An update of the page keeps focus and text of the field.
    shop_tasks().send_receipt.enqueue(4).wait(WAIT_SECONDS)
    expect(why).to_have_value("lunch")
    page.keyboard.press("Escape")
    expect(page.locator("#ask-pause summary")).to_be_focused()
    expect(why).to_be_hidden()
    page.locator("#ask-pause summary").press("Enter")
    why.press("Enter")
    expect(page.get_by_text("The queue mail is paused since")).to_be_visible()
    page.get_by_role("button", name="Undo").press("Enter")
    expect(page.get_by_text("The queue mail is resumed")).to_be_visible()
