"""What tasks and queues say about their dead letters: when they are sent again by themselves, and
who is told of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stoker.conf import Settings
from stoker.exceptions import UnknownTask
from stoker.models import DeadLetter
from stoker.signals import call_project, tell
from stoker.store.clock import microseconds
from stoker.tasks.dead_letters import DeadLetters
from stoker.tasks.registry import find_task


def policy_of(settings: Settings, letter: DeadLetter) -> DeadLetters | None:
    """The one in force: the task's own, else that of the queue, else that of all queues."""
    own: DeadLetters | None = getattr(_task(letter), "dead_letters", None)
    if own is not None:
        return own
    by_queue = dict(settings.dead_letters)
    return by_queue.get(letter.queue) or by_queue.get("")


def cooldowns_us(settings: Settings, letters: Sequence[DeadLetter]) -> dict[str, int]:
    """Identity -> how long until it is sent again, for those that are."""
    found = {}
    for letter in letters:
        policy = policy_of(settings, letter)
        seconds = policy.cooldown_seconds if policy is not None else None
        if policy is None or seconds is None:
            continue
        if policy.covers(letter.reason, letter.exception_class):
            found[letter.identity] = microseconds(seconds)
    return found


def tell_task(letter: DeadLetter) -> None:
    """Call the task's own ``on_dead_letter``. What it raises is told, and harms nothing."""
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
