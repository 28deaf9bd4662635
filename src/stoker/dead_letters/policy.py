"""Dead-letter policies of tasks and queues: automatic requeues and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stoker.conf import Settings
from stoker.exceptions import UnknownTask
from stoker.models import DeadLetter
from stoker.signals import call_project, tell
from stoker.store.written import microseconds
from stoker.tasks.dead_letters import DeadLetters
from stoker.tasks.registry import find_task


def policy_of(settings: Settings, letter: DeadLetter) -> DeadLetters | None:
    """Return the policy in force: the task's own, else the queue's, else the one for all queues."""
    own: DeadLetters | None = getattr(_task(letter), "dead_letters", None)
    if own is not None:
        return own
    by_queue = dict(settings.dead_letters)
    return by_queue.get(letter.queue) or by_queue.get("")


def cooldowns_us(settings: Settings, letters: Sequence[DeadLetter]) -> dict[str, int]:
    """Return identity -> delay before the automatic requeue, for dead letters that have one."""
    found = {}
    for letter in letters:
        policy = policy_of(settings, letter)
        if policy is None or policy.cooldown_seconds is None:
            continue
        if policy.covers(letter.reason, letter.exception_class):
            found[letter.identity] = microseconds(policy.cooldown_seconds)
    return found


def tell_task(letter: DeadLetter) -> None:
    """Call the task's ``on_dead_letter``. Its errors are logged and otherwise ignored."""
    hook = getattr(_task(letter), "on_dead_letter", None)
    if hook is not None:
        call_project(f"on_dead_letter of {letter.task}", partial(_call, hook, letter))


def _call(hook: Callable[[DeadLetter], object], letter: DeadLetter) -> None:
    try:
        hook(letter)
    except Exception as error:  # noqa: BLE001 - the project's code may raise anything
        tell("hook_failed", hook="on_dead_letter", task=letter.task, error=error)


def _task(letter: DeadLetter) -> Any:
    try:
        return find_task(letter.task)
    except UnknownTask:
        return None
