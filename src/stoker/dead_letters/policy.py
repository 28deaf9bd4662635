"""Dead-letter policies of tasks and queues: automatic requeues and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stoker.conf import Settings
from stoker.exceptions import UnknownTask
from stoker.models import DeadLetter
from stoker.signals import call_project, tell
from stoker.store.written import microseconds
from stoker.tasks.dead_letters import DeadLetters
from stoker.tasks.registry import find_task, imported_task


def policy_of(
    settings: Settings, letter: DeadLetter, *, may_import: bool = True
) -> DeadLetters | None:
    """Return the policy in force: the task's own, else the queue's, else the one for all queues.

    Args:
        settings: of the backend.
        letter: the dead letter.
        may_import: whether to import the module of the task. If not, and it is not imported yet,
            the task has no policy of its own.
    """
    task = _task(letter) if may_import else imported_task(letter.task)
    own: DeadLetters | None = getattr(task, "dead_letters", None)
    if own is not None:
        return own
    by_queue = dict(settings.dead_letters)
    return by_queue.get(letter.queue) or by_queue.get("")


def cooldowns_us(
    settings: Settings, letters: Sequence[DeadLetter], *, may_import: bool = True
) -> dict[str, int]:
    """Return identity -> delay before the automatic requeue, for dead letters that have one. See
    ``policy_of``."""
    found = {}
    for letter in letters:
        policy = policy_of(settings, letter, may_import=may_import)
        if policy is None or policy.cooldown_seconds is None:
            continue
        if policy.covers(letter.reason, letter.exception_class):
            found[letter.identity] = microseconds(policy.cooldown_seconds)
    return found


def tell_task(letter: DeadLetter) -> None:
    """Call the task's ``on_dead_letter``. Its errors are logged and otherwise ignored.

    The task's module is imported only for a job that expired, because no worker has tried to import
    it. Otherwise the import may be what failed.
    """
    task = imported_task(letter.task)
    may_import = task is None and letter.reason == DeadLetter.Reason.EXPIRED
    if may_import or getattr(task, "on_dead_letter", None) is not None:
        call_project(f"on_dead_letter of {letter.task}", partial(_call_hook, letter))


def _call_hook(letter: DeadLetter) -> None:
    hook = getattr(_task(letter), "on_dead_letter", None)
    if hook is None:
        return
    try:
        hook(letter)
    except Exception as error:  # noqa: BLE001 - the project's code may raise anything
        tell("hook_failed", hook="on_dead_letter", task=letter.task, error=error)


def _task(letter: DeadLetter) -> Any:
    try:
        return find_task(letter.task)
    except UnknownTask:
        return None
