"""Arguments that a user edits: JSON with the tags of the codec, checked against the task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, get_type_hints

from stoker.conf import Settings
from stoker.exceptions import PackageError, UnknownTask
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.sealing import NOT_YET_KNOWN, calls_of
from stoker.models import DeadLetter, Job
from stoker.tasks.arguments import ShownCall, mismatch_of, shown_call
from stoker.tasks.edited_arguments import restored
from stoker.tasks.guards import signature_of_call
from stoker.tasks.registry import find_task
from stoker.values import codec
from stoker.values.pickles import nothing_unpickled
from stoker.values.text import shown_json

from .details import REVEAL
from .operation import Done, Operation
from .request_context import RequestContext

CHANGED_MEANWHILE = (
    "The arguments were changed after this form was opened. Check the current arguments on the "
    "previous page. To overwrite them, submit this form again."
)
CHECKED = (str, int, bool, float, list, dict)
"""Types of annotations that values are checked against."""


Before = tuple[Sequence[Any], Mapping[str, Any]]
"""Arguments: by position, by name."""


def as_text(value: Any) -> str:
    """Return a value as JSON to edit, with control characters and bidirectional marks as escapes;
    "" if it cannot be written as JSON."""
    try:
        return shown_json(json.dumps(codec.encode(value), indent=2, ensure_ascii=False))
    except codec.NotEncodable:
        return ""


def template_of(value: Any) -> Mapping[str, Any] | None:
    """Return new values by the name of the argument, from an object or from its JSON; None = there
    are none.

    Raises:
        ValueError: it is not a JSON object.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError):
            value = ()
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("Write the new arguments as a JSON object.")
    return value or None


def written_of(call: ShownCall | None) -> dict[str, str]:
    """Return the arguments as the texts of a form; "" = they cannot be read."""
    if call is None:
        return {"args": "", "kwargs": ""}
    return {"args": as_text(call.args), "kwargs": as_text(call.kwargs)}


class Runner(NamedTuple):
    """The task that takes the arguments of a job, and how it takes them."""

    path: str
    """The dotted path of the task."""
    receives: str = ""
    each: str = ""
    """Both as in ``JobOptions``."""

    @property
    def hint(self) -> str:
        """Return how the arguments differ from those of a usual call; "" = they do not."""
        if self.each:
            return "The only argument is the list of the calls of a map."
        if self.receives:
            return "The task receives one more argument first: the result of the step before."
        return ""


def runner_of(settings: Settings, row: DeadLetter | Job) -> Runner:
    """Return the task that takes the arguments.

    A job of a plain function has the function's path as its name, but another task runs it.
    """
    try:
        package = sealer_for(settings).open_without_arguments(bytes(row.package))
    except PackageError:
        return Runner(row.task)
    options = package.options
    return Runner(options.via or row.task, options.receives, options.each)


@dataclass(frozen=True, slots=True)
class Edited:
    """An edited call."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """One sentence for each problem; empty = the task accepts these arguments."""

    @classmethod
    def read(
        cls, runner: Runner, args: str, kwargs: str, added: str = "", before: Before | None = None
    ) -> Edited:
        """Read and check the arguments of a call.

        Args:
            runner: The task.
            args: A JSON list.
            kwargs: A JSON object.
            added: The name of an argument that Stoker adds; "" = none.
            before: The arguments before the change. Secrets that the user did not see are restored
                from them.
        """
        problems: list[str] = []
        read_args = _read(args, list, "Arguments", problems)
        read_kwargs = _read(kwargs, dict, "Arguments by name", problems)
        if before is not None and not problems:
            try:
                read_args = restored(read_args, before[0])
                read_kwargs = restored(read_kwargs, before[1])
            except ValueError as error:
                problems.append(f"{str(error).capitalize()}.")
        if not problems:
            given = {**read_kwargs, added: None} if added else read_kwargs
            problems += _problems_of_calls(runner, read_args, given)
        return cls(read_args, read_kwargs, problems)

    @staticmethod
    def signature(task_path: str) -> str:
        """Return the signature of the task; "" if it is not known."""
        try:
            task = find_task(task_path)
        except UnknownTask:
            return ""
        signature = signature_of_call(task.func, task.takes_context)
        return "" if signature is None else f"{task.name}{signature}"


def changes_of(
    edited: Edited, written: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments that were changed; None = they stay as they are in the package.

    Args:
        written: the texts of the form.
        before: the texts that the form had at first.
    """
    changes: dict[str, Any] = {"args": edited.args, "kwargs": edited.kwargs}
    for name, text in before.items():
        if text and written[name].replace("\r\n", "\n").strip() == text:
            changes[name] = None
    return changes


def edit_arguments(
    visit: RequestContext, operation: Operation, row: Job | DeadLetter, **options: Any
) -> tuple[Done | None, dict[str, Any]]:
    """Perform an operation with the arguments in a submitted form.

    Args:
        row: the job or dead letter whose arguments the form shows.
        options: further options of the operation.

    Returns:
        The answer if the operation was performed, else None and the context of the form.
    """
    settings, post = visit.settings, visit.request.POST
    runner, package, call = runner_of(settings, row), _opened(settings, row), None
    if package is not None:
        call = shown_call(package, settings.redact, reveal=visit.may(REVEAL))
    written = before = written_of(call)
    problems: Sequence[str] = ()
    if visit.request.method == "POST":
        written = {name: post.get(name, "") for name in before}
        sealed = (package.args, package.kwargs) if package and not visit.may(REVEAL) else None
        edited = Edited.read(runner, **written, before=sealed)
        problems = edited.problems
        if not problems and post.get("seen", _mark_of(before)) != _mark_of(before):
            problems = [CHANGED_MEANWHILE]
        if not problems:
            changes = changes_of(edited, written, before)
            done = operation.attempt(visit.operator, str(row.pk), **changes, **options)
            if done.is_good:
                return done, {}
            problems = [done.sentence]
    return None, {
        "written": written,
        "seen": _mark_of(before),
        "problems": problems,
        "because": post.get("because", ""),
        "signature": Edited.signature(runner.path),
        "hint": runner.hint,
        "is_readable": package is not None,
    }


def _mark_of(written: Mapping[str, str]) -> str:
    """Return a short mark of the arguments that a form shows, to notice that they have changed."""
    return sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]


def _opened(settings: Settings, row: Job | DeadLetter) -> Package | None:
    """Return the package; None = it cannot be opened here."""
    try:
        with nothing_unpickled():
            return sealer_for(settings).open(bytes(row.package))
    except PackageError:
        return None


def _read(text: str, kind: type[Any], name: str, problems: list[str]) -> Any:
    what = "a JSON list, as [1, 2]" if kind is list else 'a JSON object, as {"order_id": 7}'
    try:
        plain = json.loads(text.strip() or ("[]" if kind is list else "{}"))
        # The codec recognises its tags only in compact JSON.
        value = codec.read(json.dumps(plain, separators=(",", ":"), allow_nan=False).encode())
    except (ValueError, RecursionError, TypeError, LookupError, ArithmeticError) as error:
        problems.append(f"{name}: this is not JSON: {error}. Write {what}.")
        return kind()
    if not isinstance(value, kind) or (kind is dict and not all(isinstance(k, str) for k in value)):
        problems.append(f"{name}: write {what}.")
        return kind()
    return value


def _problems_of_calls(runner: Runner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the problems of the first call that the task would not accept."""
    problem = ["Arguments: write a list with one list, which has the calls."]
    if runner.each and not (len(args) == 1 and isinstance(args[0], list | tuple)):
        return problem
    try:
        calls = list(calls_of(args, runner.each, runner.receives))
    except TypeError:  # an item of a starmap is no list
        return problem
    found = (_problems_of_call(runner.path, one, kwargs) for one in calls)
    return next((problems for problems in found if problems), [])


def _problems_of_call(path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    try:
        task = find_task(path)
    except UnknownTask as error:
        return [str(error)]
    signature = signature_of_call(task.func, task.takes_context)
    if signature is None:
        return []
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        because = mismatch_of(error, signature, kwargs)
        return [f"{task.name}{signature} cannot be called with these arguments: {because}."]
    try:
        hints = get_type_hints(task.func)
    except (NameError, TypeError, AttributeError):  # imported for type checkers only
        return []
    return [  # without the value, which may be a restored secret
        f"{name}: this is not of type {hints[name].__name__}."
        for name, value in bound.arguments.items()
        if value is not NOT_YET_KNOWN
        and hints.get(name) in CHECKED
        and not _is_a(value, hints[name])
    ]


def _is_a(value: Any, kind: type[Any]) -> bool:
    if isinstance(value, bool) and kind in (int, float):
        return False
    return isinstance(value, (int, float) if kind is float else kind)
