"""What workflows are made of: signatures, chains, groups and chords, as plain values. Nothing here
knows how they are stored or run.

::

    send.s(7)                    a call, which is given the result of the step before it first
    send.si(7)                   the same, but it is not
    chain(a.s(1), b.s())         one after the other            a.s(1) | b.s()
    group(a.s(1), a.s(2))        side by side                   a.s(1) & a.s(2)
    chord(group(...), c.s())     a group, then a step that gets the list of its results
    a.map(range(1000))           a call for each, a hundred to a job; a list of results
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain as one_after_the_other
from itertools import islice
from typing import Any, Self

from asgiref.sync import sync_to_async

from stoker.compat import DEFAULT_TASK_BACKEND_ALIAS, is_task, task_backends
from stoker.exceptions import InvalidTaskOption

CHUNK = 100


@dataclass(frozen=True, kw_only=True)
class Node:
    """A step, or what holds steps. Immutable: each method gives another one."""

    name: str = ""
    """For screens."""
    is_optional: bool = False
    undo_step: Node | None = field(default=None, repr=False)
    error_step: Node | None = field(default=None, repr=False)

    def named(self, name: str) -> Self:
        """This with a name, which screens and errors show."""
        return replace(self, name=name)

    def optional(self) -> Self:
        """This, without which its chain or group goes on if it fails: the step after it is given
        None then."""
        return replace(self, is_optional=True)

    def undo(self, step: Any) -> Self:
        """This with a compensation: if a later step of the same chain fails, it is run, the last
        first. It is given this one's result, unless it is written with ``si``."""
        return replace(self, undo_step=as_node(step))

    def on_error(self, step: Any) -> Self:
        """This with a step that is run if it fails. It is given the Result of the job because of
        which, unless it is written with ``si``. Nobody waits for it."""
        return replace(self, error_step=as_node(step))

    def enqueue(self, *, name: str = "") -> Any:
        """Make a workflow of this: all of it or nothing, in the open transaction if there is one.

        Args:
            name: for screens and ``stoker workflows``.

        Returns:
            Its WorkflowResult.

        Raises:
            InvalidTask, InvalidTaskOption, NotSerializable, PackageTooLarge, TypeError: with the
                step that cannot be one. Nothing was stored then.
            NotMigrated, BrokerUnavailable: it could not be stored.
        """
        try:
            return self._enqueue(name)
        except RecursionError as error:
            raise InvalidTaskOption(
                "The workflow is nested too deep for Python's stack: write what comes one after "
                "the other as one chain, chain(a, b, c), not as chains in chains."
            ) from error

    def _enqueue(self, name: str) -> Any:
        alias = self._first_backend() or DEFAULT_TASK_BACKEND_ALIAS
        backend: Any = task_backends[alias]
        if not hasattr(backend, "enqueue_workflow"):
            raise InvalidTaskOption(
                f'TASKS["{alias}"] is {type(backend).__name__}, which has no workflows: let its '
                'BACKEND be "stoker.backend.StokerBackend".'
            )
        return backend.enqueue_workflow(self, name or self.name)

    async def aenqueue(self, *, name: str = "") -> Any:
        """The same without blocking the event loop."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(name=name)

    def __or__(self, other: Any) -> Chain:
        return Chain(steps=(*_parts(self, Chain), *_parts(as_node(other), Chain)))

    def __and__(self, other: Any) -> Group:
        return Group(members=(*_parts(self, Group), *_parts(as_node(other), Group)))

    def _first_backend(self) -> str | None:
        """The backend of the first task in it; None where there is none."""
        raise NotImplementedError  # each kind of node has its own


@dataclass(frozen=True, kw_only=True)
class Signature(Node):
    """One call of a task: what ``my_task.s(...)`` gives."""

    task: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    receives: bool = True
    """Whether it is given the result of the step before it."""
    each: str = ""
    """ "map" or "starmap": the one argument is a list of calls."""

    def _first_backend(self) -> str | None:
        return str(self.task.backend)


@dataclass(frozen=True, kw_only=True)
class Chain(Node):
    """Steps one after the other."""

    steps: tuple[Node, ...]
    is_chord: bool = False

    def _first_backend(self) -> str | None:
        return next(filter(None, (step._first_backend() for step in self.steps)), None)


@dataclass(frozen=True, kw_only=True)
class Group(Node):
    """Steps side by side."""

    members: Iterable[Any]
    goes_on: bool = False
    """Whether each member is optional."""
    fails_fast: bool = False
    at_once: int | None = None

    def _first_backend(self) -> str | None:
        members = self.members
        first = members.first if isinstance(members, Stream) else next(iter(members), None)
        return None if first is None else as_node(first)._first_backend()

    def nodes(self) -> Iterator[Node]:
        """The members, one by one."""
        for member in self.members:
            node = as_node(member)
            yield node.optional() if self.goes_on else node


@dataclass(frozen=True, kw_only=True)
class Map(Node):
    """One call for each of many, some of them in one job."""

    task: Any
    each: str
    items: Iterable[Any]
    chunk: int = CHUNK

    def _first_backend(self) -> str | None:
        return str(self.task.backend)

    def nodes(self) -> Iterator[Signature]:
        """The jobs, one by one."""
        rest = iter(self.items)
        while part := list(islice(rest, self.chunk)):
            yield Signature(task=self.task, args=(part,), receives=False, each=self.each)


class Stream:
    """Members that are made as they are asked for, which can be done once."""

    def __init__(self, members: Iterator[Any]) -> None:
        self.first = next(members, None)
        self._rest: Iterator[Any] | None = members

    def __iter__(self) -> Iterator[Any]:
        rest, self._rest = self._rest, None
        if rest is None:
            raise InvalidTaskOption(
                "This group was made of a generator, which is used up: make the group again, or "
                "give it a list."
            )
        return rest if self.first is None else one_after_the_other([self.first], rest)


def as_node(thing: Any) -> Node:
    """A step: what is one already, or a task without arguments.

    Raises:
        InvalidTaskOption: it is neither.
    """
    if isinstance(thing, Node):
        return thing
    if is_task(thing):
        return Signature(task=thing)
    raise InvalidTaskOption(
        f"{_shortened(thing)} is no step: write my_task.s(...), a chain, a group or a chord."
    )


def _shortened(thing: Any) -> str:
    """What somebody has written, without all that a task or a node consists of."""
    text = repr(thing)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parts(node: Node, kind: type[Node]) -> Sequence[Node]:
    """What | and & put together: the parts of a plain chain or group, else the step itself."""
    if isinstance(node, Chain) and kind is Chain and node == Chain(steps=node.steps):
        return node.steps
    if isinstance(node, Group) and kind is Group and node == Group(members=node.members):
        return tuple(node.members) if isinstance(node.members, tuple) else (node,)
    return (node,)


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
