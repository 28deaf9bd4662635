"""Django's admin in a browser, with a running cluster."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from playwright.sync_api import expect

from stoker import every, schedules
from stoker.models import DeadLetter, Job

from tests.browser.window import Window
from tests.cluster.clusters import ProcessCluster, wait_for

pytestmark = pytest.mark.slow

PICTURES = Path(__file__).resolve().parents[2] / "reports" / "admin"
PAGES = (
    "job/",
    "job/{failed}/change/",
    "job/{waiting}/change/",
    "deadletter/",
    "deadletter/faults/",
    "deadletter/{letter}/change/",
    "deadletter/{letter}/edit/",
    "pausedqueue/",
    "cluster/",
    "job/{waiting}/why/",
    "job/{waiting}/cancel/",
    "schedule/",
    "schedule/hourly/change/",
    "schedule/hourly/edit/",
    "schedule/add/",
)


def dead(cluster: ProcessCluster) -> DeadLetter:
    """Return the dead letter of a job that cannot succeed."""
    from shop import tasks  # can be imported only in these tests

    job = tasks.resize_photo.enqueue("missing-7.jpg")
    wait_for(lambda: DeadLetter.objects.filter(job_id=job.id).exists())
    return DeadLetter.objects.get(job_id=job.id)


def test_failed_job_is_found_edited_and_requeued(alice: Window, cluster: ProcessCluster) -> None:
    letter, page = dead(cluster), alice.page
    alice.go("/admin/")
    page.get_by_role("link", name="Jobs", exact=True).first.click()
    page.locator(".stoker-tabs").get_by_role("link", name="failed").click()
    page.get_by_label("Select all on this page").check()
    assert page.locator("input[name=ids]:not(:checked)").count() == 0
    page.locator(f'a[href="/admin/stoker/job/{letter.job_id}/change/"]').click()
    expect(page.locator("#content")).to_contain_text("NoSuchPhoto")
    expect(page.locator("#content pre").last).to_contain_text("raise NoSuchPhoto(name)")
    page.locator(".stoker-verbs").get_by_role("link", name="Dead letter").click()

    page.get_by_role("link", name="Edit and requeue").click()
    page.fill("[name=args]", "[7]")
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_role("alert")).to_contain_text("name: this is not of type str")
    page.fill("[name=args]", '["lighthouse.jpg"]')
    page.fill("[name=because]", "it was renamed")
    page.get_by_role("button", name="Requeue").click()
    expect(page.locator(".messagelist")).to_contain_text("Requeued as job")

    again = DeadLetter.objects.get(pk=letter.pk).successor_id
    wait_for(lambda: Job.objects.filter(pk=again, status="SUCCESSFUL").exists())
    page.reload()
    expect(page.locator("#content")).to_contain_text("resolved")
    page.locator(f'#content a[href="/admin/stoker/job/{again}/change/"]').first.click()
    expect(page.locator(".stoker-state").first).to_have_text("successful")
    expect(page.locator(".stoker-life")).to_contain_text("it was renamed")
    expect(page.locator("#content")).to_contain_text("lighthouse.jpg")


def test_schedule_form_previews_the_next_ticks(alice: Window, cluster: ProcessCluster) -> None:
    page = alice.page
    alice.go("/admin/stoker/schedule/add/")
    page.wait_for_load_state("networkidle")
    assert page.locator("#preview-problems li").count() == 0, "nothing is filled in yet"
    page.fill("[name=name]", "weekly report")
    page.fill("[name=task]", "shop.tasks.nightly_report")
    page.fill("[name=args]", '["last week"]')
    page.fill("[name=expression]", "30 2 * * 99")
    expect(page.locator("#preview-problems")).to_contain_text("99")
    page.fill("[name=expression]", "30 2 * * 1")
    expect(page.locator("#preview-words")).to_contain_text("Monday")
    expect(page.locator("#preview-next li")).to_have_count(5)
    expect(page.locator("#preview-problems li")).to_have_count(0)
    page.select_option("[name=kind]", "interval")
    expect(page.locator("[name=expression]")).to_be_hidden()
    page.fill("[name=count]", "2")
    page.select_option("[name=unit]", "weeks")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".messagelist")).to_contain_text("is added")
    assert schedules.get("weekly report").count == 2
    schedules.delete("weekly report")


def test_pages_are_accessible_and_fit_each_width(alice: Window, cluster: ProcessCluster) -> None:
    """At each width, in light and dark, axe finds no fault, and nothing scrolls sideways."""
    from shop import tasks

    letter = dead(cluster)
    waiting = tasks.send_receipt.using(run_after=3600).enqueue(1, to="carol")
    schedules.upsert("hourly", tasks.pack, every(hours=1, args=[1, "x"]))
    ids = {"failed": letter.job_id, "waiting": UUID(waiting.id), "letter": letter.pk}
    page, wrong = alice.page, []
    for number, address in enumerate(PAGES):
        alice.go("/admin/stoker/" + address.format(**ids))
        page.wait_for_load_state("networkidle")
        wrong += alice.look(PICTURES, f"{number}-{address.partition('/')[0]}", within="#content")
    assert not wrong, "\n".join(wrong)
