"""What a task's hooks come to: jobs that are made ready here, where a mistake is seen, and enqueued
when a job of the task has ended. See stoker.following.hooks."""

from __future__ import annotations

from typing import Any

from stoker import codec
from stoker.codec import Refusal
from stoker.compat import task_backends
from stoker.conf import Settings
from stoker.exceptions import InvalidTaskOption, NotSerializable
from stoker.following.hooks import FAILURE, FINISH, RECORD, SUCCESS
from stoker.nodes import Signature, as_node
from stoker.options import options_of

from .calling import calls_of, needs_of_step, refuse_unusual, refuse_wrong_arguments

HOOKS = {"on_success": SUCCESS, "on_failure": FAILURE, "on_finish": FINISH}


def hooks_of(settings: Settings, task: Any) -> str:
    """The hooks of a task as they travel with its jobs; "" = it has none.

    Raises:
        InvalidTask, InvalidTaskOption, NotSerializable, TypeError: one of them is none.
    """
    rows = []
    for option, when in HOOKS.items():
        hook = getattr(task, option, None)
        if hook is None:
            continue
        node = as_node(hook)
        assert isinstance(node, Signature)
        rows.append([when, *_row(settings, f"{option} of {task.module_path}", node)])
    if recorder := getattr(task, "recorder", ""):
        rows.append([RECORD, recorder])
    return codec.write(codec.encode(rows)).decode() if rows else ""


def _row(settings: Settings, owner: str, hook: Signature) -> list[Any]:
    task = hook.task
    if task.backend != settings.alias:
        raise InvalidTaskOption(
            f"{owner}: {task.module_path} is of the backend {task.backend!r}; let it be "
            f"{settings.alias!r}, too."
        )
    task_backends[settings.alias].validate_task(task)
    refuse_unusual(task, "", f"{owner}, a hook,")
    receives = "result" if hook.receives else ""
    for args in calls_of(hook.args, "", receives):
        refuse_wrong_arguments(task, args, hook.kwargs)
    options = options_of(task, settings)
    row = [
        task.module_path,
        task.queue_name,
        int(task.priority),
        [options.max_attempts, options.max_crashes, options.timeout_seconds],
        list(hook.args),
        dict(hook.kwargs),
        [list(need) for need in needs_of_step(task, hook.args, hook.kwargs, receives)],
        receives,
    ]
    try:
        codec.encode(row)
    except Refusal as refusal:
        raise NotSerializable(
            f"{owner}: an argument of {task.module_path} is {type(refusal.value).__name__}, which "
            "cannot travel with the job: pass plain values."
        ) from None
    return row
