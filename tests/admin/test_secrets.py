"""No output of any face has a hidden argument: pages of the dashboard and the admin, answers of the
HTTP API, commands, and log records. No page has markup from texts of jobs."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from stoker import Lock, chain, dead_letters, every, group, queues, schedules, task
from stoker.admin.base import StoreAdmin
from stoker.api.urls import api
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.dashboard.urls import urlpatterns as dashboard
from stoker.logs.lines import StoredLine, pack_lines
from stoker.management.screen.pages import views_of
from stoker.models import BulkOperation, Cluster, DeadLetter, GuardKey, LogChunk, Step
from stoker.operations import bulk, waiting_jobs
from stoker.operations import dead_letters as letters
from stoker.operations.operation import Operator
from stoker.store.written import DatabaseNow
from stoker.testing import drain

from tests.admin.conftest import Visitor
from tests.app import payments, tasks

IBAN, PASSWORD, TOKEN = payments.SECRETS
CALL = {"password": PASSWORD, "more": payments.MORE}
PINS = [["owner 1", "pin-90210"], ["owner 2", "pin-90211"]]
MARKUP = '<u id="x">'
ESCAPED = "&lt;u id="
SECRETS = (*payments.SECRETS, "pin-90210", "pin-90211")


@task(redact=["pin"], max_attempts=1)
def unlock(owner: str, pin: str, door: str = "") -> None:
    raise ValueError(f"the door is jammed {MARKUP}")


@task(lock=Lock(f"vault {MARKUP}"), redact=["pin"])
def open_vault(pin: str) -> None: ...


SCHEDULE, QUEUE = f"pay {MARKUP}", f"mail {MARKUP}"


class World:
    """Things in every state whose arguments have secrets, and ids of them."""

    def __init__(self) -> None:
        settings = settings_for()
        operator = Operator(settings, f"anna {MARKUP}", f"a test {MARKUP}")
        payments.pay.enqueue(-7, IBAN, **CALL)
        requeued = payments.pay.enqueue(-8, IBAN, **CALL)
        echoed = payments.pay.enqueue(7, IBAN, **CALL)
        flow = group(
            chain(tasks.echo.si(f"owner 3 {MARKUP}"), unlock.s("pin-90210")),
            unlock.starmap(PINS),
            unlock.si("owner 4", "pin-90211").named(f"last {MARKUP}"),
        ).enqueue(name=f"doors {MARKUP}")
        chain(unlock.si("owner 5", "pin-90210"), unlock.s("pin-90211")).enqueue()
        drain()
        letter = DeadLetter.objects.get(job_id=requeued.id)
        done = letters.REQUEUE.attempt(operator, str(letter.pk), kwargs=CALL)
        assert done.is_good
        waiting = payments.pay.using(run_after=3600).enqueue(9, IBAN, **CALL)
        assert waiting_jobs.EDIT.attempt(operator, waiting.id, args=[10, IBAN]).is_good
        payments.pay.enqueue(11, IBAN, **CALL).cancel(f"changed my mind {MARKUP}")
        bulk.perform(operator, waiting_jobs.HOLD, {"ids": [waiting.id, echoed.id]})
        bulk.perform(operator, letters.REQUEUE, {"q": "refused"}, {"arguments": {"order_id": 12}})
        rule = every(hours=1, args=[13, IBAN], kwargs=CALL)
        row = schedules.create(SCHEDULE, payments.pay, rule)
        queues.pause(QUEUE, by=f"anna {MARKUP}", because=MARKUP)
        LogChunk.objects.create(
            job_id=echoed.id,
            attempt=1,
            lines=pack_lines([StoredLine(0, "INFO", f"shop {MARKUP}", f"paid {MARKUP}")]),
            keep_until=timezone.now(),
        )
        cluster = self._running_cluster()
        self.ids = {
            "job_id": [echoed.id, waiting.id, requeued.id, self.vault.id, *_jobs_of(flow.id)],
            "letter_id": [str(pk) for pk in DeadLetter.objects.values_list("pk", flat=True)],
            "schedule_id": [str(row.pk)],
            "schedule": [SCHEDULE],
            "workflow_id": [str(pk) for pk in _workflows()],
            "guard_id": [str(pk) for pk in GuardKey.objects.values_list("pk", flat=True)],
            "bulk_id": [str(pk) for pk in _bulks()],
            "cluster_id": [str(cluster)],
            "queue": ["default", QUEUE],
        }

    def _running_cluster(self) -> UUID:
        """Let a cluster hold one job, and another wait for its lock."""
        self.vault = open_vault.enqueue("pin-90210")
        open_vault.enqueue("pin-90211")
        cluster_id = uuid4()
        request = ClaimRequest(100, holder=cluster_id, lease_seconds=600)
        claimed = broker_for(settings_for()).claim(request)
        running = [{"job": str(one.job_id), "seconds": 1.0} for one in claimed]
        Cluster.objects.create(
            id=cluster_id,
            name=settings_for().cluster,
            host=f"one {MARKUP}",
            pid=7,
            heartbeat_us=DatabaseNow(),
            started_at=timezone.now(),
            info={"workers": [{"number": 0, "pid": 8, "jobs_done": 3, "running": running}]},
        )
        return cluster_id


def _jobs_of(workflow_id: str) -> list[str]:
    steps = Step.objects.filter(workflow_id=workflow_id, job_id__isnull=False)
    return [str(pk) for pk in steps.values_list("job_id", flat=True)]


def _workflows() -> Any:
    return Step.objects.values_list("workflow_id", flat=True).distinct()


def _bulks() -> Any:
    return BulkOperation.objects.values_list("pk", flat=True)


@pytest.fixture
def world(transactional_db: None, settings: Any) -> World:
    settings.ROOT_URLCONF = "tests.admin.urls_with_dashboard"
    options = {"LOGS": {"level": "INFO"}}
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}
    return World()


@pytest.fixture
def looker(world: World, who_may: Callable[..., Visitor]) -> Visitor:
    """A user who may do everything except see hidden arguments."""
    visitor = who_may()
    found = Permission.objects.filter(content_type__app_label="stoker")
    visitor.user.user_permissions.set(found.exclude(codename="reveal_job"))
    return visitor


def secrets_in(text: str) -> list[str]:
    return [one for one in SECRETS if one in text]


def filled(route: str, ids: dict[str, list[str]]) -> Iterator[str]:
    """Yield the addresses of a route, with each id of its parameter."""
    found = re.search(r"<(?:\w+:)?(\w+)>|\{(\w+)\}", route)
    if found is None:
        yield route
        return
    for one in ids[found[1] or found[2]]:
        yield from filled(route[: found.start()] + quote(one) + route[found.end() :], ids)


def pages(world: World) -> Iterator[str]:
    """Yield the address of every page of the dashboard, of the admin, and of the API."""
    for one in dashboard:
        if one.name not in ("asset", "live"):
            yield from (f"/stoker/{path}" for path in filled(str(one.pattern), world.ids))
    yield "/stoker/queues/one/?name=default"
    yield f"/stoker/queues/one/?name={quote(QUEUE)}"
    yield "/stoker/tasks/one/?name=tests.app.payments.pay"
    yield "/stoker/tasks/one/?name=tests.admin.test_secrets.unlock"
    yield "/stoker/jobs/?q=owner"
    yield "/stoker/palette/?q=pay"
    for kind in ("job", "letter"):
        for arguments in ("", '{"door": "{owner}"}', '{"door": "{pin}"}', '{"order_id": "{iban}"}'):
            yield f"/stoker/bulk/new/?kind={kind}&arguments={arguments}"
    for path, methods in api.get_openapi_schema(path_prefix="")["paths"].items():
        if "get" in methods:
            yield from (f"/stoker/{one.lstrip('/')}" for one in filled(path, world.ids))
    for model, registered in admin.site._registry.items():
        if isinstance(registered, StoreAdmin):
            name = str(model._meta.model_name)
            ids = {"object_id": world.ids[OBJECTS[name]]}
            for one in registered.get_urls():
                yield from (
                    f"/admin/stoker/{name}/{path}" for path in filled(str(one.pattern), ids)
                )


OBJECTS = {
    "job": "job_id",
    "deadletter": "letter_id",
    "schedule": "schedule",
    "pausedqueue": "queue",
    "cluster": "cluster_id",
}
"""Model of the admin -> ids of its objects."""


def test_pages_and_answers_have_no_hidden_argument(world: World, looker: Visitor) -> None:
    found, answered = [], 0
    for path in pages(world):
        response: Any = looker.client.get(path)
        content = b"".join(response.streaming_content) if response.streaming else response.content
        answered += response.status_code == 200
        # On a slow machine, the heartbeat of the cluster is too old by now.
        is_fine = response.status_code < 500 or path.endswith("/health/clusters")
        assert is_fine, (path, content)
        if secrets_in(content.decode()):
            found.append((path, secrets_in(content.decode())))
    assert answered > 100
    assert not found, "\n".join(map(str, found))


def test_texts_of_jobs_are_escaped_on_every_page(world: World, looker: Visitor) -> None:
    found, escaped = [], 0
    for path in pages(world):
        response = looker.client.get(path)
        if response.headers["Content-Type"].startswith("text/html"):
            page = response.content.decode()
            escaped += ESCAPED in page
            found += [path] if MARKUP in page else []
    assert not found, "\n".join(found)
    assert escaped > 50


def commands(world: World) -> Iterator[list[str]]:
    for words in ("info", "tasks", "monitor --once", "jobs list", "dead list", "dead stats"):
        yield words.split()
    for words in ("workflows list", "schedules list", "clusters list", "bulk list", "doctor"):
        yield words.split()
    yield ["jobs", "list", "--search", "owner"]
    for one in world.ids["job_id"]:
        yield from (["jobs", "show", one], ["jobs", "logs", one], ["why", one])
    for one in world.ids["letter_id"]:
        yield ["dead", "show", one, "--all-tracebacks"]
    for one in world.ids["workflow_id"]:
        yield from (["workflows", "show", one], ["workflows", "steps", one])
    for one in world.ids["bulk_id"]:
        yield ["bulk", "show", one]
    yield ["schedules", "show", SCHEDULE]


def test_commands_write_no_hidden_argument(world: World) -> None:
    found = []
    for words in commands(world):
        for more in ([], ["--json"]):
            out = io.StringIO()
            try:
                call_command("stoker", *words, *more, stdout=out, stderr=out)
            except (CommandError, SystemExit) as error:
                out.write(str(error))
            if secrets_in(out.getvalue()):
                found.append((*words, *more, secrets_in(out.getvalue())))
    assert not found, "\n".join(map(str, found))


def test_views_and_details_of_the_monitor_have_no_hidden_argument(world: World) -> None:
    opened: dict[Any, str] = {}
    rest = views_of([settings_for()])
    while rest:
        page = rest.pop()
        lines = list(page.lay_out(page.read(), 1_000))
        opened[page.key] = "\n".join(line.text for line in lines)
        rest += [one.opens for one in lines if one.opens and one.opens.key not in opened]
    kinds = {key[0] for key in opened}
    assert kinds >= {"overview", "cluster", "queue", "fault", "letter", "job"}
    assert any("order 10" in text for key, text in opened.items() if key[0] == "queue")
    assert secrets_in("".join(opened.values())) == []


def test_logs_have_no_hidden_argument(
    transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "stoker"):
        World()
        for one in DeadLetter.objects.filter(state="open"):
            dead_letters.discard(one.pk, by="anna")
    assert "refused" in caplog.text
    assert secrets_in(caplog.text) == []
    texts = [str(vars(one)) for one in caplog.records if one.name.startswith("stoker")]
    assert secrets_in("".join(texts)) == []


def test_stored_records_of_operations_have_no_hidden_argument(world: World) -> None:
    """The previous arguments of an edited job are kept sealed."""
    rows = [str(vars(one)) for one in BulkOperation.objects.all()]
    assert len(rows) > 3
    assert secrets_in("".join(rows)) == []
