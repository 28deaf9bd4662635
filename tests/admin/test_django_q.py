"""Django Q's pages in the admin."""

from collections.abc import Callable
from typing import Any

import pytest

from stoker import dead_letters
from stoker.contrib.django_q.models import Failure, OrmQ, Schedule, Success
from stoker.contrib.django_q.tasks import async_task, schedule
from stoker.models import Job
from stoker.testing import drain

from tests.admin.conftest import Visitor
from tests.app.models import Account

HERE = "tests.contrib.django_q.functions"
PAGES = "/admin/stoker_django_q"


def open_page(visitor: Visitor, path: str, status: int = 200) -> str:
    response = visitor.client.get(f"{PAGES}/{path}")
    assert response.status_code == status, (response.status_code, response.content)
    return response.content.decode()


def choose(visitor: Visitor, path: str, action: str, *keys: Any, **fields: Any) -> str:
    data = {"action": action, "_selected_action": keys, **fields}
    response = visitor.client.post(f"{PAGES}/{path}", data, follow=True)
    assert response.status_code == 200, (response.status_code, response.content)
    return response.content.decode()


def test_pages_show_ended_tasks_with_their_arguments(anna: Visitor) -> None:
    account = Account.objects.create(total=5)
    good = async_task(f"{HERE}.total_of", account, task_name="sum", group="sums")
    bad = async_task(f"{HERE}.fail", "<b>no ink</b>", ack_failure=True)
    drain()
    listed = open_page(anna, "success/")
    assert "sum" in listed
    assert "sums" in listed
    assert f"&lt;testapp.Account {account.pk}&gt;" in open_page(anna, f"success/{good}/change/")
    assert "&lt;b&gt;no ink&lt;/b&gt;" in open_page(anna, "failure/")
    assert "&lt;b&gt;no ink&lt;/b&gt;" in open_page(anna, f"failure/{bad}/change/")
    open_page(anna, "success/add/", status=403)


def test_pages_hide_secrets_among_the_arguments(
    anna: Visitor, who_may: Callable[..., Visitor]
) -> None:
    secret = "correct horse"
    task_id = async_task(f"{HERE}.sign_in", "ben", secret, token=secret)
    drain()
    page = f"success/{task_id}/change/"
    looker = who_may("stoker_django_q.view_success")
    text = open_page(looker, page)
    assert "&#x27;ben&#x27;, [withheld]" in text
    assert secret not in text
    assert secret in open_page(anna, page)


class Parcel:
    """A value that notes when it is unpickled."""

    opened: list[str] = []

    def __str__(self) -> str:
        return "a parcel"

    def __reduce__(self) -> Any:
        return _open_parcel, ()


def _open_parcel() -> Parcel:
    Parcel.opened.append("one")
    return Parcel()


def test_pages_unpickle_nothing(anna: Visitor, settings: Any) -> None:
    entry = settings.TASKS["default"]
    options = {**entry.get("OPTIONS", {}), "SERIALIZER": "pickle"}
    settings.TASKS = {**settings.TASKS, "default": {**entry, "OPTIONS": options}}
    good = async_task(f"{HERE}.note", Parcel())
    bad = async_task(f"{HERE}.fail", Parcel(), ack_failure=True)
    async_task(f"{HERE}.note", Parcel())
    assert "note-" in open_page(anna, "ormq/")
    assert not Parcel.opened
    drain()
    assert Parcel.opened
    Parcel.opened.clear()
    for path, key in (("success", good), ("failure", bad)):
        assert key[-12:] in open_page(anna, f"{path}/")
        open_page(anna, f"{path}/{key}/delete/")
        assert "pages do not unpickle" in open_page(anna, f"{path}/{key}/change/")
    assert not Parcel.opened


def test_resubmitted_success_runs_again_under_a_new_id(anna: Visitor) -> None:
    task_id = async_task(f"{HERE}.add", 1, two=2, group="sums")
    drain()
    assert "1 task was resubmitted." in choose(anna, "success/", "resubmit", task_id)
    drain()
    again, first = Success.objects.all()
    assert first.pk == task_id  # a success is kept, as in Django Q
    assert (again.result, again.group) == (3, "sums")


def test_resubmitted_task_keeps_an_argument_named_like_an_option(anna: Visitor) -> None:
    task_id = async_task(f"{HERE}.note", group="eu", q_options={"group": "sums"})
    drain()
    choose(anna, "success/", "resubmit", task_id)
    assert len(drain()) == 1
    row, _ = Success.objects.all()
    assert (row.kwargs, row.group) == ({"group": "eu"}, "sums")


def test_resubmitted_failure_settles_its_dead_letter(anna: Visitor) -> None:
    task_id = async_task(f"{HERE}.fail", ack_failure=True)
    drain()
    (letter,) = dead_letters.find().letters
    assert "1 task was resubmitted." in choose(anna, "failure/", "resubmit", task_id)
    assert dead_letters.get(letter.pk).letter.state == "requeued"
    assert Job.objects.filter(status=None).count() == 1
    assert not Failure.objects.exists()


def test_failure_that_cannot_be_resubmitted_stays_and_says_why(anna: Visitor) -> None:
    task_id = async_task(f"{HERE}.fail", ack_failure=True)
    drain()
    (letter,) = dead_letters.find().letters
    dead_letters.discard(letter.pk, because="known")
    page = choose(anna, "failure/", "resubmit", task_id)
    assert "Its dead letter was not requeued" in page
    assert Failure.objects.filter(pk=task_id).exists()
    assert not Job.objects.filter(status=None).exists()


@pytest.mark.parametrize("column", ["args", "kwargs"])
def test_imported_task_with_unreadable_arguments_is_not_resubmitted(
    column: str, anna: Visitor
) -> None:
    unread = {"args": (), "kwargs": {}, column: "(not read: it has a shop.Order)"}
    row = Failure.objects.create(name="old", func=f"{HERE}.note", success=False, **unread)
    assert "(not read: it has a shop.Order)" in open_page(anna, f"failure/{row.pk}/change/")
    page = choose(anna, "failure/", "resubmit", row.pk)
    assert "Its arguments cannot be read: (not read: it has a shop.Order)" in page
    assert Failure.objects.filter(pk=row.pk).exists()
    assert not Job.objects.exists()


def test_resubmission_needs_the_permission_to_change(who_may: Callable[..., Visitor]) -> None:
    task_id = async_task(f"{HERE}.add", 1)
    drain()
    carl = who_may("stoker_django_q.view_success")
    assert "Resubmit" not in open_page(carl, "success/")
    choose(carl, "success/", "resubmit", task_id)
    assert Success.objects.filter(pk=task_id).exists()
    dora = who_may("stoker_django_q.view_success", "stoker_django_q.change_success")
    assert "Resubmit" in open_page(dora, "success/")


def test_deleting_a_queued_task_cancels_its_job(anna: Visitor) -> None:
    async_task(f"{HERE}.add", 1, task_name="sum")
    (row,) = OrmQ.objects.all()
    assert "sum" in open_page(anna, "ormq/")
    assert "sum" in open_page(anna, f"ormq/{row.pk}/delete/")
    choose(anna, "ormq/", "delete_selected", row.pk, post="yes")
    assert not OrmQ.objects.exists()
    assert Job.objects.get(pk=row.pk).status == "CANCELLED"


def add_schedule(anna: Visitor, **changed: str) -> str:
    """Fill in the form of a new schedule, send it, and return the page that follows."""
    fields = {
        "name": "often",
        "func": f"{HERE}.add",
        "schedule_type": "D",
        "repeats": "-1",
        "next_run_0": "2030-01-01",
        "next_run_1": "00:00:00",
        **changed,
    }
    response = anna.client.post(f"{PAGES}/schedule/add/", fields, follow=True)
    assert response.status_code == 200
    return response.content.decode()


def test_schedule_is_added(anna: Visitor) -> None:
    schedule(f"{HERE}.add", 1, name="hourly", schedule_type=Schedule.HOURLY)
    assert "hourly" in open_page(anna, "schedule/")
    assert "was added successfully" in add_schedule(anna, schedule_type="C", cron="*/5 * * * *")
    row = Schedule.objects.get(name="often")
    assert row.own_id is not None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schedule_type": "C", "cron": "every day"}, "is not a cron rule"),
        ({"schedule_type": "C"}, "needs a cron rule"),
        ({"args": "John"}, "cannot be read: write plain values"),
        ({"kwargs": "q_options={'chain': [1]}"}, "cannot have the option &quot;chain&quot;"),
        ({"schedule_type": "I", "minutes": "99999999"}, "must be a whole number from 1 to"),
        ({"name": "", "func": f"a.{'f' * 254}"}, "is longer than 255 characters"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_form_says_why_a_schedule_is_refused(
    changed: dict[str, str], why: str, anna: Visitor
) -> None:
    assert why in add_schedule(anna, **changed)
    assert not Schedule.objects.exists()


def test_schedule_that_has_ended_can_be_changed(anna: Visitor) -> None:
    assert "was added successfully" in add_schedule(anna, args="John", repeats="0")
