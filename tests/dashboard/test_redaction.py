"""Secrets among the arguments are on no page of the dashboard and in no command's output."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from stoker import every, schedules
from stoker.models import DeadLetter
from stoker.testing import drain

from tests.app import payments
from tests.dashboard.conftest import PREFIX, running_job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

VIEWS = ("view_job", "view_deadletter", "view_schedule", "view_workflow", "view_cluster")
CALL = {"password": payments.PASSWORD, "more": payments.MORE}


@pytest.fixture
def paths() -> list[str]:
    """The pages that show the arguments."""
    failed = payments.pay.enqueue(-7, payments.IBAN, **CALL)
    drain()
    waiting = payments.pay.enqueue(7, payments.IBAN, **CALL)
    rule = every(hours=1, args=[7, payments.IBAN], kwargs=CALL)
    row = schedules.create("pay", payments.pay, rule)
    letter = DeadLetter.objects.get(job_id=failed.id)
    return [
        "jobs/",
        "jobs/?state=failed",
        f"jobs/{failed.id}/",
        f"jobs/{waiting.id}/",
        "queues/one/?name=default",
        "tasks/one/?name=tests.app.payments.pay",
        "dead-letters/",
        f"dead-letters/{letter.pk}/",
        f"schedules/{row.pk}/",
    ]


def secrets_in(text: str) -> list[str]:
    return [one for one in payments.SECRETS if one in text]


def test_pages_hide_secrets_from_users_without_the_permission(
    paths: list[str], who_may: Callable[..., Client]
) -> None:
    looker = who_may(*VIEWS)
    for path in paths:
        text = looker.get(PREFIX + path).content.decode()
        assert secrets_in(text) == [], path
        assert "[withheld]" in text or "order 7" in text or "order -7" in text, path


def test_pages_show_secrets_to_users_with_the_permission(
    paths: list[str], who_may: Callable[..., Client]
) -> None:
    looker = who_may(*VIEWS, "reveal_job")
    for path in paths:
        if path.startswith(("jobs/0", "schedules/", "dead-letters/0")):
            assert payments.IBAN in looker.get(PREFIX + path).content.decode(), path


def test_lists_show_arguments_by_name_and_labels(anna: Client) -> None:
    payments.pay.enqueue(7, payments.IBAN)
    payments.plain.enqueue(8, note="<b>two\nlines</b>")
    text = anna.get(f"{PREFIX}jobs/").content.decode()
    assert "order 7" in text
    assert "order_id=8, note=&#x27;&lt;b&gt;two\\nlines&lt;/b&gt;&#x27;" in text


def test_letters_of_a_search_and_slowest_jobs_show_arguments(anna: Client) -> None:
    payments.pay.enqueue(-7, payments.IBAN)
    payments.plain.enqueue(8, note="slow")
    drain()
    text = anna.get(f"{PREFIX}jobs/?q=refused").content.decode()
    assert "order -7" in text[text.index('id="letters"') :]
    text = anna.get(f"{PREFIX}tasks/one/?name={payments.plain.module_path}").content.decode()
    assert "order_id=8" in text[text.index('id="slowest"') : text.index('id="newest"')]


def test_running_job_of_a_worker_shows_its_arguments(who_may: Callable[..., Client]) -> None:
    running_job()
    assert "first=1, second=2" in who_may(*VIEWS).get(f"{PREFIX}clusters/").content.decode()
    assert "second=2" not in who_may("view_cluster").get(f"{PREFIX}clusters/").content.decode()


def test_setting_replaces_the_names_that_are_hidden(
    who_may: Callable[..., Client], settings: Any
) -> None:
    names = {"OPTIONS": {"REDACT": ["order_id"]}}
    settings.TASKS = {"default": {**settings.TASKS["default"], **names}}
    job = payments.pay.enqueue(7, payments.IBAN, password=payments.PASSWORD)
    text = who_may("view_job").get(f"{PREFIX}jobs/{job.id}/").content.decode()
    assert secrets_in(text) == [payments.PASSWORD]
    assert "order [withheld]" in text


def test_commands_hide_secrets(paths: list[str]) -> None:
    letter = DeadLetter.objects.get()
    for words in (["dead", "show", str(letter.pk)], ["schedules", "show", "pay"]):
        for more in ([], ["--json"]):
            out = io.StringIO()
            call_command("stoker", *words, *more, stdout=out)
            assert "withheld" in out.getvalue()
            assert secrets_in(out.getvalue()) == [], words
    out = io.StringIO()
    call_command("stoker", "dead", "list", stdout=out)
    assert "  order -7\n" in out.getvalue()
