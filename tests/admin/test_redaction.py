"""Secrets among the arguments are on no page and in no form of the admin."""

import html
import re
from collections.abc import Callable

import pytest

from stoker import dead_letters, every, schedules
from stoker.models import DeadLetter
from stoker.testing import drain

from tests.admin.conftest import Visitor
from tests.app import payments

VIEWS = ("stoker.view_job", "stoker.view_deadletter", "stoker.view_schedule")
CHANGES = ("stoker.requeue_deadletter", "stoker.change_schedule")
CALL = {"password": payments.PASSWORD, "more": payments.MORE}


@pytest.fixture
def letter(transactional_db: None) -> DeadLetter:
    failed = payments.pay.enqueue(-7, payments.IBAN, **CALL)
    drain()
    rule = every(hours=1, args=[7, payments.IBAN], kwargs=CALL)
    schedules.create("pay", payments.pay, rule)
    return DeadLetter.objects.get(job_id=failed.id)


def fields_of(page: str) -> dict[str, str]:
    """Return the text areas of a form."""
    found = re.findall(r'<textarea[^>]*name="(\w+)"[^>]*>\s*(.*?)</textarea>', page, re.DOTALL)
    return {name: html.unescape(text) for name, text in found}


def test_pages_and_forms_hide_secrets(
    letter: DeadLetter, who_may: Callable[..., Visitor], anna: Visitor
) -> None:
    looker = who_may(*VIEWS, *CHANGES)
    for path in (
        "job/",
        f"job/{letter.job_id}/change/",
        "deadletter/",
        f"deadletter/{letter.pk}/change/",
        f"deadletter/{letter.pk}/edit/",
        "schedule/pay/change/",
        "schedule/pay/edit/",
    ):
        page = looker.get(path)
        assert not [one for one in payments.SECRETS if one in page], path
    assert payments.IBAN in anna.get(f"deadletter/{letter.pk}/edit/")


def test_edited_dead_letter_keeps_the_secrets_that_were_hidden(
    letter: DeadLetter, who_may: Callable[..., Visitor]
) -> None:
    looker = who_may(*VIEWS, *CHANGES)
    fields = fields_of(looker.get(f"deadletter/{letter.pk}/edit/"))
    fields["args"] = fields["args"].replace("-7", "8")
    looker.post(f"deadletter/{letter.pk}/edit/", **fields, queue="default", because="")
    drain()
    assert dead_letters.get(letter.pk).letter.state == "resolved"
    successor = dead_letters.get(letter.pk).requeues[0].job_id
    result = payments.pay.get_result(str(successor))
    assert result.args == [8, payments.IBAN]
    assert result.kwargs == CALL


def test_placeholder_in_another_place_is_refused(
    letter: DeadLetter, who_may: Callable[..., Visitor]
) -> None:
    looker = who_may(*VIEWS, *CHANGES)
    page = looker.post(
        f"deadletter/{letter.pk}/edit/",
        args='[8, "DE0"]',
        kwargs='{"order": "[withheld]"}',
        queue="default",
    )
    assert "Write a value instead of [withheld]" in page


def test_changed_schedule_keeps_its_secrets_unless_its_task_changes(
    letter: DeadLetter, who_may: Callable[..., Visitor]
) -> None:
    looker = who_may(*VIEWS, *CHANGES)
    fields = fields_of(looker.get("schedule/pay/edit/"))
    fields |= {"task": "tests.app.payments.pay", "kind": "interval", "count": "2", "tz": "UTC"}
    fields |= {"unit": "hours", "misfire": "once", "overlap": "allow", "repeats": "-1"}
    looker.post("schedule/pay/edit/", **fields)
    kept = schedules.scheduled("pay")
    assert (kept.args, kept.kwargs) == ((7, payments.IBAN), CALL)
    assert kept.count == 2  # type: ignore[union-attr]
    page = looker.post("schedule/pay/edit/", **{**fields, "task": "tests.app.payments.plain"})
    assert "Write a value instead of [withheld]" in page
