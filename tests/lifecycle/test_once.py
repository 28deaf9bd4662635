"""The start of an at-most-once job whose INSERT gets no answer."""

from typing import Any

import pytest
from django.db import OperationalError

from stoker.conf import settings_for
from stoker.exceptions import AlreadyBegun
from stoker.jobs.once import note_begin
from stoker.jobs.package import Package, sealer_for
from stoker.models import Begun, Job

from tests.app.chaos import snooze_once

pytestmark = pytest.mark.django_db(transaction=True)


def package() -> Package:
    result = snooze_once.enqueue()
    return sealer_for(settings_for()).open(bytes(Job.objects.get(pk=result.id).package))


def lose_answers(patch: pytest.MonkeyPatch, *, is_stored: bool) -> None:
    save = Begun.save

    def save_without_answer(*args: Any, **options: Any) -> None:
        if is_stored:
            save(*args, **options)
        raise OperationalError("server closed the connection unexpectedly")

    patch.setattr(Begun, "save", save_without_answer)


def test_stored_start_whose_answer_was_lost_begins_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = package()
    with monkeypatch.context() as patch:
        lose_answers(patch, is_stored=True)
        note_begin(settings_for(), ours, "worker 1")
    assert Begun.objects.get().worker_id == "worker 1"
    with pytest.raises(AlreadyBegun):
        note_begin(settings_for(), ours, "worker 1")


def test_start_of_another_delivery_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = package()
    note_begin(settings_for(), ours, "worker 1")
    lose_answers(monkeypatch, is_stored=False)
    with pytest.raises(OperationalError):
        note_begin(settings_for(), ours, "worker 1")


def test_start_that_was_not_stored_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = package()
    with monkeypatch.context() as patch:
        lose_answers(patch, is_stored=False)
        with pytest.raises(OperationalError):
            note_begin(settings_for(), ours, "worker 1")
    note_begin(settings_for(), ours, "worker 1")
