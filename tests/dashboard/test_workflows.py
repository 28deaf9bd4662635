"""The page of a workflow: its timeline, its pages of steps, and the retry of one step."""

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from stoker import chain, chord, group, task
from stoker.conf import settings_for
from stoker.dashboard.gantt import gantt_of
from stoker.inspect.steps import MOST_EARLIER, StepSpan, StepSpanKind, TimedStep, timed_steps
from stoker.models import BulkOperation, DeadLetter, Step, Workflow
from stoker.operations.bulk_walk import go_on
from stoker.testing import drain

from tests.dashboard.conftest import PREFIX
from tests.dashboard.test_pages import MOST_QUERIES
from tests.workflows.tasks import FAILING, double, note, total

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

MOST_BYTES = 60_000
MEMBERS = 10_000
VIEWS = ("view_workflow", "view_job", "view_deadletter", "change_workflow")


@task(max_attempts=1)
def log_in(name: str, password: str) -> None:
    raise ValueError(name)


@pytest.fixture(autouse=True)
def _nothing_fails() -> None:
    FAILING.clear()


def page_of(client: Client, workflow_id: Any, query: str = "") -> str:
    response = client.get(f"{PREFIX}workflows/{workflow_id}/{query}")
    assert response.status_code == 200, response.content
    return response.content.decode()


def rows_of(page: str) -> list[str]:
    """Return the rows of the timeline."""
    timeline = page[page.index('id="timeline"') : page.index('id="graph"')]
    return re.findall(r"<tr data-key.*?</tr>", timeline, re.DOTALL)


def failed_workflow(*names: str) -> Any:
    """Return a group of the named members, of which "b" has failed."""
    FAILING.add("b")
    flow = group(*(note.si(name) for name in names)).enqueue(name="order 7")
    drain()
    FAILING.clear()
    return flow


# -- the timeline ---------------------------------------------------------------------------------


def test_timeline_shows_failed_step_first_with_arguments_dead_letter_and_job(anna: Client) -> None:
    flow = failed_workflow("a", "b", "c")
    rows = rows_of(page_of(anna, flow.id))
    assert len(rows) == 3
    assert ['class="bad"' in row for row in rows] == [True, False, False]
    assert ["Retry this step" in row for row in rows] == [True, False, False]
    letter = DeadLetter.objects.get()
    assert f"/jobs/{letter.job_id}/" in rows[0]
    assert f"/dead-letters/{letter.pk}/" in rows[0]
    assert "name=&#x27;b&#x27;" in rows[0]
    assert "waited" in rows[0]


def test_timeline_hides_secrets_and_what_needs_other_permissions(
    who_may: Callable[..., Client],
) -> None:
    flow = chain(log_in.si("anna", password="s3cret")).enqueue()
    drain()
    (row,) = rows_of(page_of(who_may("view_workflow", "view_job"), flow.id))
    assert "anna" in row
    assert "s3cret" not in row
    assert "dead-letters/" not in row
    assert "disabled" in row
    (row,) = rows_of(page_of(who_may("view_workflow"), flow.id))
    assert "anna" not in row, "arguments are seen by those who may see jobs"


def test_step_that_has_not_begun_shows_its_arguments_and_no_bar(anna: Client) -> None:
    flow = chain(note.si("a"), note.si("later")).enqueue()
    first, second = rows_of(page_of(anna, flow.id))
    assert "later" in second
    assert "has not begun" in second
    assert "<rect" not in second
    assert 'class="wait"' in first, "it waits for a worker"


def test_steps_are_filtered_by_state_and_paged(anna: Client) -> None:
    flow = failed_workflow("b", *(f"m{number}" for number in range(40)))
    assert len(rows_of(page_of(anna, flow.id, "?state=failed"))) == 1
    first = page_of(anna, flow.id)
    (address,) = re.findall(r'rel="next" href="[^"]*(\?[^"]*)"', first)
    second = page_of(anna, flow.id, address.replace("&amp;", "&"))
    keys = [row[:60] for row in (*rows_of(first), *rows_of(second))]
    assert len(keys) == len(set(keys)) == 41
    assert 'rel="next"' not in second
    for bad in ("?state=odd", "?after=odd", "?after=1~2"):
        assert anna.get(f"{PREFIX}workflows/{flow.id}/{bad}").status_code == 400


def test_state_that_no_step_has_shows_an_empty_timeline(anna: Client) -> None:
    flow = group(note.si("a"), note.si("c")).enqueue()
    drain()
    assert rows_of(page_of(anna, flow.id, "?state=failed")) == []


def test_every_step_is_on_one_page_whatever_their_states() -> None:
    flow = failed_workflow(*"abcdefgh")
    members = list(Step.objects.filter(workflow_id=flow.id, kind="task").order_by("pk"))
    for step, state in zip(members[2:], ("CANCELLED", "ENQUEUED", "PENDING"), strict=False):
        Step.objects.filter(pk=step.pk).update(state=state)
    seen, after = [], ""
    while after is not None:
        page = timed_steps(settings_for(), Workflow.objects.get().pk, after=after, limit=2)
        seen += [step.state for step in page.steps]
        after = page.next  # type: ignore[assignment] # None ends the loop
    assert seen == ["FAILED", "CANCELLED", "ENQUEUED", *["SUCCESSFUL"] * 4, "PENDING"]


def test_running_step_has_a_bar_up_to_now(anna: Client) -> None:
    began = datetime.now(UTC) - timedelta(seconds=10)
    row = Workflow(pk=uuid4(), made_at=began)

    def at(seconds: float) -> datetime:
        return began + timedelta(seconds=seconds)

    step = TimedStep(
        id=uuid4(), parent_id=None, role="step", state="ENQUEUED", label="x", job_id=uuid4(),
        enqueued_at=at(0), started_at=at(2), finished_at=None, attempts=2, wait_seconds=4.0,
        run_seconds=6.0, is_running=True, dead_letter_id=None, can_retry=False,
        spans=(
            StepSpan(StepSpanKind.WAIT, at(0), at(2)),
            StepSpan(StepSpanKind.FAILURE, at(2), at(4)),
            StepSpan(StepSpanKind.WAIT, at(4), at(6)),
            StepSpan(StepSpanKind.RUN, at(6), at(10), is_open=True),
        ),
    )  # fmt: skip
    gantt = gantt_of(row, [step], at(10))
    assert [tick.label for tick in gantt.ticks] == ["0", "5 s", "10 s"]
    assert [tick.at for tick in gantt.ticks] == ["0.0%", "50.0%", "100.0%"]
    (drawn,) = gantt.rows
    assert [tuple(bar) for bar in drawn.bars] == [
        ("0.00%", "20.00%", "wait"),
        ("20.00%", "20.00%", "bad"),
        ("40.00%", "20.00%", "wait"),
        ("60.00%", "40.00%", "now"),
    ]
    assert drawn.words == "waited 4.0 s, ran 6.0 s, in 2 attempts"


# -- retry one step -------------------------------------------------------------------------------


def test_one_step_is_retried_and_the_retry_undone(anna: Client) -> None:
    flow = failed_workflow("a", "b")
    step = Step.objects.get(state="FAILED", kind="task")
    fields = {
        "step": str(step.pk),
        "workflow": flow.id,
        "because": "mended",
        "back": f"{PREFIX}workflows/{flow.id}/",
    }
    response = anna.post(f"{PREFIX}workflows/steps/retry/", fields, follow=True)
    notice = response.context["notice"]
    assert "The step is retried" in notice["text"]
    flow.refresh()
    assert flow.status == "RUNNING"
    audited = BulkOperation.objects.get()
    assert (audited.operation, audited.by, audited.because) == ("retry-step", "anna", "mended")
    assert f"/jobs/{step.pk}/" in anna.get(f"{PREFIX}audit/").content.decode()
    response = anna.post(f"{PREFIX}workflows/steps/undo/", dict(notice["fields"]), follow=True)
    assert "has failed again" in response.context["notice"]["text"]
    flow.refresh()
    assert flow.status == "FAILED"
    response = anna.post(f"{PREFIX}workflows/steps/undo/", dict(notice["fields"]), follow=True)
    assert "no retry to undo" in response.context["notice"]["text"]
    anna.post(f"{PREFIX}workflows/steps/retry/", fields)
    drain()
    flow.refresh()
    assert flow.status == "SUCCESSFUL"
    response = anna.post(f"{PREFIX}workflows/steps/retry/", fields, follow=True)
    assert "only a failed or cancelled step" in response.context["notice"]["text"]


def test_timeline_shows_the_last_jobs_of_a_step_before_its_retry(anna: Client) -> None:
    flow = failed_workflow("a", "b")
    step = Step.objects.get(state="FAILED", kind="task")
    jobs = [step.job_id]
    for round_number in range(MOST_EARLIER + 1):
        FAILING.update("b" if round_number < MOST_EARLIER else ())
        flow.retry(step=step.pk)
        drain()
        FAILING.clear()
        step.refresh_from_db()
        jobs.append(step.job_id)
        rows = rows_of(page_of(anna, flow.id))
        (row,) = [one for one in rows if "earlier job" in one]
        shown = re.findall(r"/jobs/([0-9a-f-]{36})/", row)
        assert shown == [str(one) for one in reversed(jobs)][: MOST_EARLIER + 1]
        assert row.count('class="old"') == row.count("earlier job, failed") == len(shown) - 1
    assert step.state == "SUCCESSFUL"
    assert "after an earlier job" in row


# -- retry a workflow -----------------------------------------------------------------------------


def test_retry_of_a_workflow_is_undone(anna: Client) -> None:
    flow = failed_workflow("a", "b")
    fields = {"workflow": flow.id, "back": f"{PREFIX}workflows/{flow.id}/"}
    response = anna.post(f"{PREFIX}workflows/retry/", fields, follow=True)
    notice = response.context["notice"]
    assert response.redirect_chain[-1][0] == fields["back"]
    assert (notice["text"], notice["undo"]) == (
        f"The workflow {flow.id} continues: 1 of 1 steps retried.",
        "retry-workflow",
    )
    response = anna.post(f"{PREFIX}workflows/retry/", dict(notice["fields"]), follow=True)
    assert response.context["notice"]["text"] == "1 of 1 retries undone."
    flow.refresh()
    assert flow.status == "FAILED"
    page = anna.get(f"{PREFIX}audit/?q={flow.id}").content.decode()
    assert f"workflow={flow.id}" in page


def test_retry_of_a_large_workflow_leads_to_its_progress(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.operations.bulk.AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr("stoker.workflows.control.AT_A_TIME", 1)
    names = ("a", "b", "c")
    FAILING.update(names)
    flow = group(*(note.si(name) for name in names)).enqueue()
    drain()
    FAILING.clear()
    preview = f"{PREFIX}bulk/new/?kind=step&workflow={flow.id}"
    assert preview.replace("&", "&amp;") in page_of(anna, flow.id)
    text = anna.get(preview).content.decode()
    assert "3 steps to retry" in text
    assert "name=&#x27;a&#x27;" in text
    fields = {"workflow": flow.id, "operation": "retry-step"}
    page = anna.post(f"{PREFIX}bulk/start/", fields, follow=True)
    assert "1 of 3 steps retried so far." in page.content.decode()
    row = page.context["row"]
    anna.post(f"{PREFIX}bulk/pause/", {"bulk": str(row.pk)})
    go_on(settings_for(), 600)
    row.refresh_from_db()
    assert (row.state, row.done) == ("paused", 1)
    anna.post(f"{PREFIX}bulk/resume/", {"bulk": str(row.pk)})
    go_on(settings_for(), 600)
    drain()
    flow.refresh()
    assert flow.status == "SUCCESSFUL"
    assert anna.get(preview).status_code == 400, "it has no step to retry"


# -- large workflows ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sqlite
def test_page_of_a_group_of_10_000_members_is_small(who_may: Callable[..., Client]) -> None:
    flow = chord((double.si(number) for number in range(MEMBERS)), total.s()).enqueue(name="large")
    members = Step.objects.filter(parent_id__isnull=False, position__gte=0, kind="task")
    ids = list(members.filter(label__endswith="double").order_by("pk").values_list("pk", flat=True))
    parts = {"SUCCESSFUL": ids[1000:6000], "CANCELLED": ids[9100:9110], "FAILED": ids[9110:9125]}
    for state, part in parts.items():
        for begin in range(0, len(part), 500):
            Step.objects.filter(pk__in=part[begin : begin + 500]).update(state=state)
    client = who_may(*VIEWS)
    with CaptureQueriesContext(connection) as captured:
        page = page_of(client, flow.id)
    assert len(captured) <= MOST_QUERIES
    assert len(page) < MOST_BYTES
    rows = rows_of(page)
    shown = re.findall(r'class="state (\w+)', "".join(rows))
    assert shown == [*["failed"] * 15, *["cancelled"] * 10, *["enqueued"] * 5]
    graph = page[page.index('id="graph"') :]
    assert graph.count('class="failed"') == 8 + 1, "8 failed members and the box of the others"
    assert "and 9,992 more" in graph
    assert "total" in graph
    assert 'aria-current="true">All <span class="faint">10,001</span>' in page
    text = StringIO()
    call_command("stoker", "workflows", "steps", flow.id, "--limit", "20", stdout=text)
    assert len(text.getvalue().splitlines()) < 70
    text = StringIO()
    call_command("stoker", "workflows", "show", flow.id, "--json", stdout=text)
    assert '"has_more": true' in text.getvalue()
    assert text.getvalue().count('"parent_id"') == 1000


@pytest.mark.slow
@pytest.mark.sqlite
def test_page_of_10_000_chained_steps_is_read_by_levels(who_may: Callable[..., Client]) -> None:
    members = (chain(*(note.si(f"s{m} {n}") for n in range(100))) for m in range(MEMBERS // 100))
    flows = [
        chain(*(note.si(f"s{number}") for number in range(MEMBERS))).enqueue(name="long"),
        chain(note.si("first"), *members).enqueue(name="nested"),
    ]
    client = who_may(*VIEWS)
    for flow, least in zip(flows, (120, 100), strict=True):
        Step.objects.filter(workflow_id=flow.id, kind="task", position=0).update(state="FAILED")
        with CaptureQueriesContext(connection) as captured:
            page = page_of(client, flow.id)
        assert len(captured) <= MOST_QUERIES
        of_levels = [one["sql"] for one in captured if "stoker_step" in one["sql"]]
        assert len(of_levels) <= 8, "one for each level, the counts and the timeline"
        graph = page[page.index('id="graph"') :]
        assert graph.count('class="box"') >= least
        assert 'class="failed"' in graph, "the steps are drawn from the first on"
        assert len(page) < 3 * MOST_BYTES


def test_members_of_a_large_group_are_drawn_with_their_own_steps(anna: Client) -> None:
    members = [chain(note.si(f"a{n}"), note.si(f"b{n}")) for n in range(150)]
    flow = chord(group(*members), total.s()).enqueue()
    graph = page_of(anna, flow.id)
    graph = graph[graph.index('id="graph"') :]
    assert graph.count('class="box"') == 2 * 8 + 2, "8 chains, the other members and the callback"
    assert "and 142 more" in graph


def test_workflows_are_found_by_name_reason_id_and_job(
    who_may: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = [chain(note.si("a")).enqueue(name=f"order {number}") for number in range(4)]
    flows[0].cancel("ordered twice")
    drain()
    job_id = Step.objects.get(workflow_id=flows[2].id, kind=Step.Kind.TASK).job_id
    looker = who_may(*VIEWS)

    def found(query: str) -> list[str]:
        page = looker.get(f"{PREFIX}workflows/?{query}").content.decode()
        return re.findall(r"<b>(order \d)</b>", page)

    assert found("q=ORDER") == ["order 3", "order 2", "order 1", "order 0"]
    assert found("q=twice") == ["order 0"]
    assert found("q=order&state=successful") == ["order 3", "order 2", "order 1"]
    assert found(f"q={flows[1].id}") == ["order 1"]
    assert found(f"q={job_id}") == ["order 2"]
    assert found(f"q={uuid4()}") == []
    out = StringIO()
    call_command("stoker", "workflows", "list", "--search", "twice", stdout=out)
    assert "order 0" in out.getvalue()
    assert "order 1" not in out.getvalue()
    monkeypatch.setattr("stoker.operations.workflows.SCANNED", 2)
    page = looker.get(f"{PREFIX}workflows/?q=order+0").content.decode()
    assert "among those that were searched" in page
    further = re.search(r'rel="next" href="([^"]*)">Search further back', page)
    assert further is not None
    assert "<b>order 0</b>" in looker.get(html.unescape(further[1])).content.decode()
