"""Secrets among the arguments are in no answer of the API."""

from collections.abc import Callable

import pytest

from stoker.models import DeadLetter
from stoker.testing import drain

from tests.api.conftest import Caller
from tests.app import payments

pytestmark = pytest.mark.django_db(transaction=True)


def test_operation_shows_no_arguments_without_the_permission_to_see_jobs(
    who_may: Callable[..., Caller],
) -> None:
    job = payments.plain.enqueue(7, note="alice")
    for permission, word in (("change_job", "hold"), ("cancel_job", "cancel")):
        body = {"because": "for alice"}
        seen = who_may(permission).post(f"jobs/{job.id}/{word}", body)
        assert seen["task"] == payments.plain.module_path
        assert (seen["args"], seen["kwargs"], seen["errors"], seen["waits"]) == (
            None,
            None,
            [],
            None,
        )
        assert "alice" not in str(seen)
    failed = payments.plain.enqueue(7, note="alice")
    seen = who_may("view_job", "cancel_job").post(f"jobs/{failed.id}/cancel")
    assert seen["kwargs"] == {"note": "alice"}


def test_answers_hide_secrets_without_the_permission(who_may: Callable[..., Caller]) -> None:
    failed = payments.pay.enqueue(-7, payments.IBAN, password=payments.PASSWORD, more=payments.MORE)
    drain()
    letter = DeadLetter.objects.get(job_id=failed.id)
    looker, trusted = who_may("view_job", "view_deadletter"), None
    trusted = who_may("view_job", "view_deadletter", "reveal_job")
    for path in (f"jobs/{failed.id}", f"dead-letters/{letter.pk}"):
        seen = looker.get(path)
        assert seen["args"] == [-7, "[withheld]"]
        assert seen["kwargs"]["password"] == "[withheld]"
        assert not [one for one in payments.SECRETS if one in str(seen)]
        assert trusted.get(path)["args"] == [-7, payments.IBAN]
    (row,) = looker.get("dead-letters")["letters"]
    assert (row["label"], row["args"]) == ("order -7", [-7, "[withheld]"])
    assert trusted.get("dead-letters")["letters"][0]["args"] == [-7, payments.IBAN]
    assert looker.get(f"jobs/{failed.id}")["label"] == "order -7"
