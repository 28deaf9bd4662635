"""The command palette: what it finds, for whom, and how much."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from stoker import chain, every, queues, schedules
from stoker.dashboard.pages.palette import MOST_OF_A_KIND, best
from stoker.models import DeadLetter, Schedule, Workflow
from stoker.testing import drain

from tests.app import frail, tasks
from tests.dashboard.conftest import PREFIX
from tests.integration.work import outside_the_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def found(client: Client, text: str) -> list[tuple[str, str]]:
    response: Any = client.get(f"{PREFIX}palette/", {"q": text})
    assert response.status_code == 200
    return [(one["kind"], one["title"]) for one in response.json()["entries"]]


@pytest.fixture
def ids() -> dict[str, str]:
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    flow = chain(tasks.add.si(1, 2), tasks.add.si(3, 4)).enqueue()
    drain()
    frail.broken.clear()
    queues.pause("mail")
    row = schedules.create("mail the report", tasks.add, every(hours=1, args=[1, 2]))
    letter = DeadLetter.objects.get(job_id=failed.id)
    return {
        "job": failed.id,
        "dead letter": str(letter.pk),
        "workflow": flow.id,
        "schedule": str(row.pk),
    }


def test_names_are_found_by_a_part_of_them(anna: Client, ids: dict[str, str]) -> None:
    assert ("page", "Dead letters") in found(anna, "")
    assert found(anna, "MAIL") == [("queue", "mail"), ("schedule", "mail the report")]
    assert ("task", "tests.app.tasks.add") in found(anna, "tasks.ADD")
    assert found(anna, "dead") == [("page", "Dead letters")]
    assert found(anna, "no such thing") == []


def test_id_leads_to_the_page_of_its_job_or_dead_letter(anna: Client, ids: dict[str, str]) -> None:
    for kind, text in ids.items():
        entries = anna.get(f"{PREFIX}palette/", {"q": f" {text} "}).json()["entries"]
        kinds = [one["kind"] for one in entries]
        assert kinds == (["job", "dead letter"] if kind == "job" else [kind])
        for one in entries:
            assert anna.get(one["address"]).status_code == 200
    assert found(anna, str(uuid4())) == []


def test_id_leads_to_the_page_of_a_job_at_the_broker(anna: Client, settings: Any) -> None:
    settings.TASKS = outside_the_database()
    result = tasks.echo.enqueue("order 7")
    assert found(anna, result.id) == [("job", f"{result.id} {tasks.echo.module_path}")]


@pytest.mark.parametrize(
    ("permission", "kinds"),
    [
        ("view_job", {"page", "queue", "task", "job"}),
        ("view_schedule", {"page", "schedule"}),
        ("view_deadletter", {"page", "dead letter"}),
        ("view_workflow", {"page", "workflow"}),
        ("view_cluster", {"page"}),
    ],
)
def test_user_finds_only_what_a_permission_allows(
    permission: str, kinds: set[str], who_may: Callable[..., Client], ids: dict[str, str]
) -> None:
    client = who_may(permission)
    seen = [entry for text in ("", "a", *ids.values()) for entry in found(client, text)]
    assert {kind for kind, _ in seen} == kinds


def test_search_without_permission_or_session_finds_nothing(
    who_may: Callable[..., Client],
) -> None:
    for client in (Client(), who_may("pause_queue")):
        assert client.get(f"{PREFIX}palette/", {"q": "a"}).status_code == 403


def test_answer_is_bounded_with_many_names(
    anna: Client, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Schedule.objects.get()
    Schedule.objects.bulk_create(
        Schedule(
            **{
                one.attname: getattr(row, one.attname)
                for one in Schedule._meta.concrete_fields
                if one.attname not in ("id", "name")
            },
            id=uuid4(),
            name=f"report {number}",
        )
        for number in range(2000)
    )
    names = {f"reports-{number}" for number in range(5000)}
    monkeypatch.setattr("stoker.dashboard.figures.names", lambda *_: (set(), names))
    found(anna, "report")
    with CaptureQueriesContext(connection) as queries:
        entries = found(anna, "report")
    assert [kind for kind, _ in entries].count("queue") == MOST_OF_A_KIND
    assert [kind for kind, _ in entries].count("schedule") == MOST_OF_A_KIND
    assert len(queries) <= 15


def test_names_with_a_word_that_begins_with_the_text_come_first() -> None:
    names = ["email", "shop.mail", "mailing-list", "mail"]
    assert best(names, "mail") == ["mail", "mailing-list", "shop.mail", "email"]


def test_name_that_is_longer_in_lower_case_is_found() -> None:
    assert best(["\u0130\u0130\u0130\u0130a"], "a") == ["\u0130\u0130\u0130\u0130a"]


def test_schedules_and_workflows_of_another_backend_are_not_found(
    anna: Client, ids: dict[str, str]
) -> None:
    Schedule.objects.update(backend="other")
    Workflow.objects.update(backend="other")
    assert [found(anna, ids[kind]) for kind in ("schedule", "workflow")] == [[], []]
    assert found(anna, "mail the") == []


def test_control_characters_in_names_are_shown_as_escapes(anna: Client) -> None:
    queues.pause("q\u202email\x1b")
    (entry,) = anna.get(f"{PREFIX}palette/", {"q": "mail"}).json()["entries"]
    assert entry["title"] == "q\\u202email\\x1b"
    assert anna.get(entry["address"]).status_code == 200
