"""The facts that reporters send about a job: enough to find it, and no secrets."""

from typing import Any
from uuid import uuid4

import pytest

from stoker.jobs.failures import Failure
from stoker.jobs.faults import Fault
from stoker.jobs.package import Package
from stoker.models import Schedule
from stoker.reporters.facts import (
    LONGEST_VALUE,
    arguments_of_failure,
    facts_of_failure,
    secrets_hider,
)
from stoker.reporters.sentry import LONGEST_SLUG, monitor_config, slug_of
from stoker.values.cron import NAMES

from tests.app import payments

pytestmark = pytest.mark.unit


def failure(
    task: str, *args: Any, metadata: dict[str, str] | None = None, **kwargs: Any
) -> Failure:
    job_id = uuid4()
    package = Package(job_id, task, args, kwargs, "mail", 0, 0.0, metadata=metadata or {})
    fault = Fault("builtins.ValueError", "no", "")
    return Failure(job_id, "mail", 2, "default", "host:1", fault, "error", False, 1.0, 2.0, package)


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_arguments_are_named_and_secrets_withheld() -> None:
    told = arguments_of_failure(failure("tests.app.reported.fail", "A-1", "hunter2"))
    assert told == {"order": "'A-1'", "password": "[withheld]"}
    told = arguments_of_failure(failure("tests.app.tasks.write_ledger", 1.5, api_token="x"))
    assert told == {"seconds": "1.5", "api_token": "[withheld]"}, "the context is no argument"
    told = arguments_of_failure(failure("tests.app.tasks.write_ledger", 1.5, signature="x"))
    assert told["signature"] == "[withheld]", "Django's reports hide it, and REDACT does not"
    told = arguments_of_failure(failure("tests.app.tasks.add", 1, 2, Rude()))
    assert told["argument 3"] == "<its repr() raised RuntimeError>"
    told = arguments_of_failure(failure("no.such.task", "hunter2", order=1))
    assert told == {"argument 1": "[withheld]", "order": "1"}, (
        "the name of the first argument is unknown"
    )
    card = {"number": [{"secret_code": "123", "month": 7}]}
    told = arguments_of_failure(failure("tests.app.tasks.echo", card))
    assert told == {"value": "{'number': [{'secret_code': [withheld], 'month': 7}]}"}
    told = arguments_of_failure(failure("tests.app.tasks.echo", "x" * 10_000))
    assert len(told["value"]) == LONGEST_VALUE + 3


def test_data_gathered_by_an_sdk_hides_arguments_by_name_and_by_text() -> None:
    about = failure("tests.app.payments.pay", 4711, payments.IBAN, password=payments.PASSWORD)
    assert about.package is not None
    hide = secrets_hider(about.package, "default")
    gathered = {
        "iban": None,
        "order_id": "4711",
        "lines": [f"paid by {payments.IBAN}", {"apiToken": "x", "note": payments.PASSWORD}],
        "count": 3,
    }
    assert hide(gathered) == {
        "iban": "[withheld]",
        "order_id": "4711",
        "lines": ["paid by [withheld]", {"apiToken": "[withheld]", "note": "[withheld]"}],
        "count": 3,
    }


def test_facts_name_schedule_and_workflow() -> None:
    metadata = {
        "stoker.schedule": "nightly",
        "stoker.moment": "2026-01-01T00:00:00+00:00",
        "stoker.workflow": "abc",
        "other": "x",
    }
    told = facts_of_failure(failure("tests.app.tasks.add", 1, 2, metadata=metadata))
    assert told["schedule"] == "nightly"
    assert told["workflow"] == "abc"
    assert (told["attempt"], told["queue"], told["is_final"]) == (2, "mail", False)
    assert "other" not in told


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (
            {"kind": "cron", "expression": "*/5 * * * *"},
            {"type": "crontab", "value": "*/5 * * * *"},
        ),
        ({"kind": "cron", "expression": "@Daily"}, {"type": "crontab", "value": NAMES["@daily"]}),
        ({"kind": "cron", "expression": "0 */5 * * * *"}, None),
        ({"count": 2, "unit": "hours"}, {"type": "interval", "value": 2, "unit": "hour"}),
        ({"count": 120, "unit": "seconds"}, {"type": "interval", "value": 2, "unit": "minute"}),
        ({"count": 90, "unit": "seconds"}, None),
        ({"count": 2, "unit": "quarters"}, {"type": "interval", "value": 6, "unit": "month"}),
        ({"kind": "once"}, None),
    ],
)
def test_monitor_config_translates_schedules(
    row: dict[str, Any], rule: dict[str, Any] | None
) -> None:
    config = monitor_config(Schedule(**{"kind": "interval", "zone": "Europe/Berlin", **row}))
    assert config == (rule and {"schedule": rule, "timezone": "Europe/Berlin"})


def test_slug_of_any_name_is_valid_and_unique() -> None:
    assert slug_of("Nightly report_2") == "nightly-report_2"
    assert slug_of("tests.app.tasks.Add") == "tests-app-tasks-add"
    others = ("a-b", "a  b", "-a-b", "a/b", "отчёт 1", "план 1", "1")
    assert len({*map(slug_of, others)}) == len(others)
    long = [slug_of(f"{'a' * 80}{number}") for number in range(2)]
    assert all(len(one) == LONGEST_SLUG for one in long)
    assert len({*long, slug_of("ä"), slug_of("ö")}) == 4
