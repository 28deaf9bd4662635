"""Tasks that write checkpoints and progress."""

import os
import pickle
import signal
from typing import Any

from django.db import transaction

from stoker import job, task

from tests.app.models import Account


@task(backoff=0, max_attempts=5)
def add_up(numbers: list[int], fails_at: list[int] = []) -> list[Any]:  # noqa: B006 - read only
    """Fail once at each of these places, right after the checkpoint."""
    state = job.last_checkpoint or {"at": 0, "total": 0, "failed": [], "went": []}
    began = state["at"]
    for place in range(began, len(numbers)):
        state["total"] += numbers[place]
        state["at"] = place + 1
        fails = place + 1 in fails_at and place + 1 not in state["failed"]
        if fails:
            state["failed"].append(place + 1)
            state["went"].append([began, place + 1])
        job.checkpoint(state)
        if fails:
            raise ValueError(place)
    return [state["total"], [*state["went"], [began, len(numbers)]]]


@task
def roll_back() -> Any:
    job.checkpoint("kept")
    try:
        with transaction.atomic():
            job.checkpoint("rolled back")
            raise ValueError  # noqa: TRY301 - rolls back
    except ValueError:
        return job.last_checkpoint


@task(max_attempts=1)
def say(name: str, pickled: str) -> None:
    """Report progress with that value for that parameter."""
    job.progress(**{"done": 1, name: pickle.loads(bytes.fromhex(pickled))})


@task(max_attempts=1)
def note_an_object() -> None:
    job.checkpoint(object())


@task
async def note_async() -> list[Any]:
    before = await job.alast_checkpoint()
    await job.acheckpoint({"page": 7})
    await job.aprogress(1, 2, "half")
    return [before, await job.alast_checkpoint()]


@task(takes_context=True)
def look_at_itself(context: Any) -> Any:
    job.progress(1, 4, "first")
    seen = context.task_result.progress
    job.progress(4, 4, "done")
    return list(seen)


@task
def count_quickly(number: int) -> None:
    for done in range(number + 1):
        job.progress(done, number)


@task(max_attempts=10, max_crashes=10, backoff=0)
def store_pages(pages: int, dies: list[tuple[int, str]]) -> int:
    """Store each page as an account. The attempts die in turn, each at its page: "before" or
    "after" the commit of the page."""
    death = dies[job.attempt - 1] if job.attempt <= len(dies) else None
    for page in range(job.last_checkpoint or 0, pages):
        with transaction.atomic():
            Account.objects.create(total=page)
            job.checkpoint(page + 1)
            if death == (page, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
        if death == (page, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
    return job.attempt
