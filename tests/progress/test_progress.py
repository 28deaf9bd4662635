"""The tag shows a job, and its address gives that job's progress to one user and nothing else."""

import re
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection
from django.template import Context, Template
from django.test import Client
from django.test.utils import CaptureQueriesContext

from stoker.models import Note
from stoker.progress import views
from stoker.testing import drain

from tests.app import tasks
from tests.dashboard.conftest import running_job, signed_in
from tests.dashboard.project import SETTINGS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

MOST_QUERIES = 6
AS_HTMX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def _project(settings: Any) -> None:
    for name, value in SETTINGS.items():
        setattr(settings, name, value)
    settings.ROOT_URLCONF = "tests.progress.urls"
    settings.MIDDLEWARE = [one for one in SETTINGS["MIDDLEWARE"] if "LoginRequired" not in one]


def shown(result: Any, arguments: str = "", user: Any = None) -> str:
    """Return the tag in a page of that user, or in a text without a request."""
    template = Template("{% load stoker %}{% job_progress result " + arguments + "%}")
    names = {"result": result}
    if user is not None:
        names["request"] = SimpleNamespace(user=user)
    return template.render(Context(names))


def address_in(text: str) -> str:
    found = re.search(r'hx-get="([^"]+)"', text)
    assert found is not None, text
    return found[1]


def test_page_polls_until_the_job_has_ended() -> None:
    result = tasks.add.enqueue(1, 2)
    first = shown(result)
    assert "Waiting" in first
    assert 'hx-trigger="every 1s"' in first
    address = address_in(first)

    drain()
    answer = Client().get(address, headers=AS_HTMX)
    assert answer.status_code == 200
    assert "Done" in answer.text
    assert "hx-get" not in answer.text
    assert "<html" not in answer.text
    assert answer.headers["HX-Trigger"] == "stoker:finished"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "HX-Request" in answer.headers["Vary"]


def test_running_job_shows_its_last_report() -> None:
    job_id = running_job()
    Note.objects.write(job_id, done=3, total=12, message="page <3>")
    text = shown(job_id, "every=2.5 ")
    assert "Running: 25 %" in text
    assert 'value="25"' in text
    assert "page &lt;3&gt;" in text
    assert 'hx-trigger="every 2.5s"' in text

    with CaptureQueriesContext(
        connection,
    ) as queries:
        again = Client().get(address_in(text), headers=AS_HTMX)
    assert "Running: 25 %" in again.text
    assert 'hx-trigger="every 2.5s"' in again.text
    assert "HX-Trigger" not in again.headers
    assert len(queries) <= MOST_QUERIES, [one["sql"] for one in queries]


def test_running_job_without_report_shows_a_bar_without_value() -> None:
    text = shown(running_job())
    assert "<progress aria-label" in text
    assert "Running</span>" in text


@pytest.mark.parametrize("language", ["en", "de"])
def test_numbers_are_not_localised(language: str, settings: Any) -> None:
    settings.LANGUAGE_CODE = language
    job_id = running_job()
    Note.objects.write(job_id, done=1, total=2, message="")
    assert 'every 0.5s"' in shown(job_id, "every=0.5 ")


def test_failed_job_shows_no_error_and_no_arguments() -> None:
    result = tasks.fail.enqueue("the secret")
    drain(include_deferred=True)
    result.refresh()
    text = shown(result)
    assert "Failed" in text
    assert "secret" not in text
    assert "hx-get" not in text


def test_cancelled_job_is_shown_as_cancelled() -> None:
    result = tasks.add.enqueue(1, 2)
    result.cancel()
    assert "Cancelled" in shown(result)


def test_browser_without_javascript_gets_a_page_that_loads_again() -> None:
    result = tasks.add.enqueue(1, 2)
    text = shown(result)
    link = re.search(r'<noscript><a href="([^"]+)">', text)
    assert link is not None
    page = Client().get(link[1])
    assert page.text.startswith("<!doctype html>")
    assert '<meta http-equiv="refresh" content="1">' in page.text
    assert "<script" not in page.text
    assert "style=" not in page.text

    drain()
    page = Client().get(link[1])
    assert "Done" in page.text
    assert "refresh" not in page.text


def test_address_of_a_user_shows_nothing_to_others() -> None:
    alice, bob = User.objects.create_user("alice"), User.objects.create_user("bob")
    address = address_in(shown(tasks.add.enqueue(1, 2), user=alice))
    assert "Waiting" in signed_in(alice).get(address).text
    for other in (signed_in(bob), Client()):
        page = other.get(address)
        assert page.status_code == 403
        assert "not known" in page.text
        part = other.get(address, headers=AS_HTMX)
        assert part.status_code == 200  # or htmx would go on asking
        assert "not known" in part.text
        assert "hx-get" not in part.text


def test_address_of_an_anonymous_page_works_for_everyone() -> None:
    result = tasks.add.enqueue(1, 2)
    for user in (None, AnonymousUser()):
        assert "Waiting" in Client().get(address_in(shown(result, user=user))).text


def test_forged_or_old_address_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    address = address_in(shown(tasks.add.enqueue(1, 2)))
    assert Client().get(f"{address[:-1]}{'A' if address[-1] != 'A' else 'B'}").status_code == 403
    assert Client().get("/progress/nonsense").status_code == 403
    monkeypatch.setattr(views, "ADDRESS_AGE", 0)
    assert Client().get(address).status_code == 403


def test_address_takes_only_get() -> None:
    address = address_in(shown(tasks.add.enqueue(1, 2)))
    assert Client().post(address).status_code == 405


def test_unknown_job_ends_the_polling() -> None:
    text = shown(uuid4())
    assert "not known" in text
    assert "hx-get" not in text
    assert "not known" in shown("no id")


def test_unreachable_store_leaves_the_page_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    address = address_in(shown(tasks.add.enqueue(1, 2)))

    def is_away(*_args: object) -> None:
        raise OperationalError("connection refused")

    with connection.execute_wrapper(is_away):
        assert Client().get(address, headers=AS_HTMX).status_code == 204
        assert Client().get(address).status_code == 503


def test_view_opens_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each poll of a page would be a writer on SQLite."""
    address = address_in(shown(tasks.add.enqueue(1, 2)))
    opened: list[bool] = []

    def look(*_: Any) -> views.Seen:
        opened.append(connection.in_atomic_block)
        return (None, None)

    monkeypatch.setattr(views, "look_at", look)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    Client().get(address)
    assert opened == [False]


def test_missing_urls_raise_with_the_line_to_add(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.app.urls"
    with pytest.raises(ImproperlyConfigured, match=r"stoker\.progress\.urls"):
        shown(tasks.add.enqueue(1, 2))
