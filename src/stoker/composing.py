"""How workflows are put together: of tasks become signatures, of signatures chains and groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .compat import is_task
from .exceptions import InvalidTaskOption
from .nodes import CHUNK, Chain, Group, Map, Node, Signature, Stream, as_node


def chain(*steps: Any, on_failure: str = "stop", on_error: Any = None, name: str = "") -> Chain:
    """Steps one after the other: each is given the result of the one before it.

    Args:
        steps: signatures, tasks without arguments, chains, groups and chords.
        on_failure: "stop" = the steps after one that failed are not run; "continue" = they are,
            and each step is as ``optional()`` makes it.
        on_error: a step that is run if the chain fails; see ``Node.on_error``.
        name: for screens.

    Raises:
        InvalidTaskOption: one of them is none of these, or there is none.
    """
    _one_of("chain", on_failure, ("stop", "continue"))
    nodes = tuple(as_node(step) for step in steps)
    if not nodes:
        raise InvalidTaskOption("chain() needs a step: chain(a.s(1), b.s()).")
    if on_failure == "continue":
        nodes = tuple(node.optional() for node in nodes)
    error = None if on_error is None else as_node(on_error)
    return Chain(steps=nodes, error_step=error, name=name)


def group(
    *members: Any,
    on_failure: str = "wait",
    at_once: int | None = None,
    on_error: Any = None,
    name: str = "",
) -> Group:
    """Steps side by side. Each is given the result of the step before the group; the step after it
    is given the list of their results, in their order.

    Args:
        members: signatures, tasks without arguments, chains, groups and chords; or one iterable of
            them, which is read as it is stored, so that a generator of 100,000 takes no memory.
        on_failure: "wait" = the group fails when all have ended; "stop" = it fails with the first
            failure, and the others are cancelled; "continue" = it does not fail, and the result of
            one that has failed is None.
        at_once: how many may be under way at the same time; None = up to a thousand.
        on_error: a step that is run if the group fails; see ``Node.on_error``.
        name: for screens.

    Raises:
        InvalidTaskOption: one of them is none of these.
    """
    _one_of("group", on_failure, ("wait", "stop", "continue"))
    if at_once is not None and not _is_whole(at_once):
        raise InvalidTaskOption(f"group(at_once={at_once!r}): write a whole number above 0.")
    given: Iterable[Any] = members
    if len(members) == 1 and not isinstance(members[0], Node) and not is_task(members[0]):
        given = _iterable("group", members[0])
    if isinstance(given, Iterator):
        given = Stream(given)
    else:
        given = tuple(as_node(member) for member in given)
    return Group(
        members=given,
        goes_on=on_failure == "continue",
        fails_fast=on_failure == "stop",
        at_once=at_once,
        error_step=None if on_error is None else as_node(on_error),
        name=name,
    )


def chord(members: Any, callback: Any, *, on_error: Any = None, name: str = "") -> Chain:
    """A group, and then a step that is given the list of its results, once.

    Args:
        members: a group, a ``map()``, or what ``group`` takes.
        callback: any step.
        on_error: a step that is run if a member or the callback fails; see ``Node.on_error``.
        name: for screens.

    Raises:
        InvalidTaskOption: one of them is none of these.
    """
    first = members if isinstance(members, Node) else group(members)
    whole = chain(first, callback, on_error=on_error, name=name)
    return replace(whole, is_chord=True)


class Steps:
    """How a task becomes a step of a workflow."""

    __slots__ = ()

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """This call as a step of a workflow, which is given the result of the step before it as its
        first argument, if there is one."""
        return Signature(task=self, args=args, kwargs=kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """This call as a step of a workflow, which is given these arguments and nothing else."""
        return Signature(task=self, args=args, kwargs=kwargs, receives=False)

    def map(self, items: Iterable[Any], *, chunk: int = CHUNK) -> Map:
        """A step that calls the function with each item, ``chunk`` of them in one job, and has the
        list of what they return. A job that is tried again begins with its first item."""
        return _map(self, "map", items, chunk)

    def starmap(self, calls: Iterable[Sequence[Any]], *, chunk: int = CHUNK) -> Map:
        """The same for items that are lists or tuples of arguments."""
        return _map(self, "starmap", calls, chunk)


def _map(task: Any, each: str, items: Iterable[Any], chunk: int) -> Map:
    if not _is_whole(chunk):
        raise InvalidTaskOption(f"{each}(chunk={chunk!r}): write a whole number above 0.")
    if task.takes_context:
        raise InvalidTaskOption(
            f"{task.module_path} takes a context, of which there is one for each job: with "
            f"{each}() it has several calls. Use group() instead."
        )
    return Map(task=task, each=each, items=_iterable(each, items), chunk=chunk)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _iterable(where: str, thing: Any) -> Iterable[Any]:
    try:
        iter(thing)
    except TypeError:
        raise InvalidTaskOption(f"{where}({thing!r}): that is nothing to go through.") from None
    return thing  # type: ignore[no-any-return] # asked


def _one_of(where: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise InvalidTaskOption(
            f"{where}(on_failure={value!r}): write one of {', '.join(map(repr, known))}."
        )
