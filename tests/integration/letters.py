"""Make dead letters, and run calls in threads at the same time."""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection

from stoker.models import DeadLetter

from tests.app import frail
from tests.integration.work import work_off


def dead(task: Any, *args: Any, **kwargs: Any) -> DeadLetter:
    """Enqueue a job that fails, work it off, and return its dead letter."""
    frail.broken.update(args)
    result = task.enqueue(*args, **kwargs)
    while work_off():
        pass
    return DeadLetter.objects.get(job_id=result.id)


def at_once(*calls: Callable[[], object]) -> None:
    """Run each call in a thread, on a connection of its own."""
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            barrier.wait(60)
            call()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
