"""The parts of workflows: signatures, chains, groups and chords, as plain values. This module does
not store or run them.

::

    send.s(7)                    a call that receives the previous step's result as first argument
    send.si(7)                   a call that does not receive it
    chain(a.s(1), b.s())         one after the other            a.s(1) | b.s()
    group(a.s(1), a.s(2))        in parallel                    a.s(1) & a.s(2)
    chord(group(...), c.s())     a group, then a step that receives the list of its results
    a.map(range(1000))           one call per item, a hundred per job; returns a list of results
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
from stoker.values.durations import is_whole

CHUNK = 100


@dataclass(frozen=True, kw_only=True)
class Node:
    """A step or a container of steps. Immutable: each method returns a changed copy."""

    name: str = ""
    """Name to show on screens."""
    is_optional: bool = False
    undo_step: Node | None = field(default=None, repr=False)
    error_step: Node | None = field(default=None, repr=False)

    def named(self, name: str) -> Self:
        """Return a copy with a name, which screens and errors show."""
        return replace(self, name=name)

    def optional(self) -> Self:
        """Return a copy whose failure does not stop its chain or group. In that case the next step
        receives None."""
        return replace(self, is_optional=True)

    def undo(self, step: Any) -> Self:
        """Return a copy with a compensation step, which runs if a later step of the same chain
        fails.

        Compensations run in reverse order. Each receives its step's result, unless written with
        ``si``.
        """
        return replace(self, undo_step=as_node(step))

    def on_error(self, step: Any) -> Self:
        """Return a copy with a step that runs if this one fails or is cancelled.

        It receives the Result of that job, unless written with ``si``. The workflow does not
        wait for it.
        """
        return replace(self, error_step=as_node(step))

    def enqueue(self, *, name: str = "") -> Any:
        """Create a workflow, in the open transaction if there is one. Either all of it is stored or
        nothing.

        Args:
            name: the name that screens and ``stoker workflows`` show.

        Returns:
            Its WorkflowResult.

        Raises:
            InvalidTask, InvalidTaskOption, NotSerializable, PackageTooLarge, TypeError: a step is
                invalid; the message names it. Or a transaction of another database than the
                queue's is open. Nothing was stored.
            NotMigrated, BrokerUnavailable: it could not be stored.
        """
        try:
            return self._enqueue(name)
        except RecursionError as error:
            raise InvalidTaskOption(
                "The workflow is nested too deep for Python's stack: write consecutive steps as "
                "one chain, chain(a, b, c), not as chains in chains."
            ) from error

    def _enqueue(self, name: str) -> Any:
        alias = self._first_backend() or DEFAULT_TASK_BACKEND_ALIAS
        backend: Any = task_backends[alias]
        if not hasattr(backend, "enqueue_workflow"):
            raise InvalidTaskOption(
                f'TASKS["{alias}"] is {type(backend).__name__}, which does not support workflows: '
                'set its BACKEND to "stoker.backend.StokerBackend".'
            )
        return backend.enqueue_workflow(self, name or self.name)

    async def aenqueue(self, *, name: str = "") -> Any:
        """Async version of ``enqueue``."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(name=name)

    def __or__(self, other: Any) -> ChainNode:
        return ChainNode(steps=(*_parts(self, ChainNode), *_parts(as_node(other), ChainNode)))

    def __and__(self, other: Any) -> GroupNode:
        return GroupNode(members=(*_parts(self, GroupNode), *_parts(as_node(other), GroupNode)))

    def _first_backend(self) -> str | None:
        """Return the backend of the first task in this node, or None if it contains no task."""
        raise NotImplementedError  # each kind of node has its own


@dataclass(frozen=True, kw_only=True)
class Signature(Node):
    """One call of a task, as returned by ``my_task.s(...)``."""

    task: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    receives: bool = True
    """Whether the call receives the previous step's result."""
    each: str = ""
    """"map" or "starmap" if the only argument is a list of calls; else ""."""

    def _first_backend(self) -> str | None:
        return str(self.task.backend)


@dataclass(frozen=True, kw_only=True)
class ChainNode(Node):
    """Steps that run one after the other."""

    steps: tuple[Node, ...]
    is_chord: bool = False

    def _first_backend(self) -> str | None:
        return next(filter(None, (step._first_backend() for step in self.steps)), None)


@dataclass(frozen=True, kw_only=True)
class GroupNode(Node):
    """Steps that run in parallel."""

    members: Iterable[Any]
    goes_on: bool = False
    """Whether the group continues after failures, as if each member were ``optional()``."""
    fails_fast: bool = False
    at_once: int | None = None

    def _first_backend(self) -> str | None:
        members = self.members
        first = members.peek() if isinstance(members, MemberIterator) else next(iter(members), None)
        return None if first is None else as_node(first)._first_backend()

    def nodes(self) -> Iterator[Node]:
        """Yield the members as nodes."""
        for member in self.members:
            node = as_node(member)
            yield node.optional() if self.goes_on else node


@dataclass(frozen=True, kw_only=True)
class MapNode(Node):
    """A call for each item. Each job makes several of the calls."""

    task: Any
    each: str
    items: Iterable[Any]
    chunk: int = CHUNK

    def _first_backend(self) -> str | None:
        return str(self.task.backend)

    def nodes(self) -> Iterator[Signature]:
        """Yield the jobs as signatures."""
        rest = iter(self.items)
        while part := list(islice(rest, self.chunk)):
            yield Signature(task=self.task, args=(part,), receives=False, each=self.each)


class MemberIterator:
    """The members of a group or the items of a map that come from an iterator, so they can be read
    only once."""

    def __init__(self, members: Iterator[Any]) -> None:
        self._rest: Iterator[Any] | None = members

    def peek(self) -> Any:
        """Return the first member, which stays there; None = there is none."""
        rest = iter(self)
        first = list(islice(rest, 1))
        self._rest = one_after_the_other(first, rest)
        return first[0] if first else None

    def __iter__(self) -> Iterator[Any]:
        rest, self._rest = self._rest, None
        if rest is None:
            raise InvalidTaskOption(
                "This group or map was made from a generator, which is exhausted: create it again, "
                "or give it a list."
            )
        return rest


def as_node(thing: Any) -> Node:
    """Return a node: the value itself, or a signature if it is a task.

    Raises:
        InvalidTaskOption: the value is neither a node nor a task.
    """
    if isinstance(thing, Node):
        return thing
    if is_task(thing):
        return Signature(task=thing)
    raise InvalidTaskOption(
        f"{_shortened(thing)} is not a step: write my_task.s(...), a chain, a group or a chord."
    )


def _shortened(thing: Any) -> str:
    """Return the repr of a value, cut to 60 characters."""
    text = repr(thing)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parts(node: Node, kind: type[Node]) -> Sequence[Node]:
    """Return the parts of a plain chain or group for | and &, else the node itself."""
    if isinstance(node, ChainNode) and kind is ChainNode and node == ChainNode(steps=node.steps):
        return node.steps
    if (
        isinstance(node, GroupNode)
        and kind is GroupNode
        and node == GroupNode(members=node.members)
    ):
        return tuple(node.members) if isinstance(node.members, tuple) else (node,)
    return (node,)


def chain(*steps: Any, on_failure: str = "stop", on_error: Any = None, name: str = "") -> ChainNode:
    """Return a chain: steps that run one after the other, each with the previous result as
    argument.

    Args:
        steps: signatures, tasks without arguments, chains, groups and chords.
        on_failure: "stop": the steps after a failed one do not run; "continue": they run, as if
            each step were ``optional()``.
        on_error: a step that runs if the chain fails; see ``Node.on_error``.
        name: the name that screens show.

    Raises:
        InvalidTaskOption: a step is invalid, or there are no steps.
    """
    _one_of("chain", on_failure, ("stop", "continue"))
    nodes = tuple(as_node(step) for step in steps)
    if not nodes:
        raise InvalidTaskOption("chain() needs a step: chain(a.s(1), b.s()).")
    if on_failure == "continue":
        nodes = tuple(node.optional() for node in nodes)
    error = None if on_error is None else as_node(on_error)
    return ChainNode(steps=nodes, error_step=error, name=name)


def group(
    *members: Any,
    on_failure: str = "wait",
    at_once: int | None = None,
    on_error: Any = None,
    name: str = "",
) -> GroupNode:
    """Return a group: steps that run in parallel.

    Each receives the result of the step before the group. The step after the group receives the
    list of results, in the order of the members.

    Args:
        members: signatures, tasks without arguments, chains, groups and chords; or one iterable of
            them. An iterable is read while it is stored, so a generator of 100,000 needs no memory.
        on_failure: "wait": the group fails after all members have ended; "stop": it fails with the
            first failure and cancels the others; "continue": it does not fail, and the result of a
            failed member is None.
        at_once: maximum number of members that run at the same time; None = a thousand.
        on_error: a step that runs if the group fails; see ``Node.on_error``.
        name: the name that screens show.

    Raises:
        InvalidTaskOption: a member is invalid.
    """
    _one_of("group", on_failure, ("wait", "stop", "continue"))
    if at_once is not None and not (is_whole(at_once) and at_once > 0):
        raise InvalidTaskOption(f"group(at_once={at_once!r}): write a whole number above 0.")
    given: Iterable[Any] = members
    if len(members) == 1 and not isinstance(members[0], Node) and not is_task(members[0]):
        given = _iterable("group", members[0])
    if isinstance(given, MemberIterator):
        given.peek()  # so that its first error is raised here
    else:
        given = tuple(as_node(member) for member in given)
    return GroupNode(
        members=given,
        goes_on=on_failure == "continue",
        fails_fast=on_failure == "stop",
        at_once=at_once,
        error_step=None if on_error is None else as_node(on_error),
        name=name,
    )


def chord(members: Any, callback: Any, *, on_error: Any = None, name: str = "") -> ChainNode:
    """Return a group followed by a step that receives the list of its results.

    Args:
        members: a group, a ``map()``, or the arguments of ``group``.
        callback: any step.
        on_error: a step that runs if a member or the callback fails; see ``Node.on_error``.
        name: the name that screens show.

    Raises:
        InvalidTaskOption: a member or the callback is invalid.
    """
    first = members if isinstance(members, Node) else group(members)
    whole = chain(first, callback, on_error=on_error, name=name)
    return replace(whole, is_chord=True)


class Steps:
    """Mixin of tasks: methods that turn a task into a step of a workflow."""

    __slots__ = ()

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as a step. Its first argument is the previous step's result."""
        return Signature(task=self, args=args, kwargs=kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return this call as a step that does not receive the previous result."""
        return Signature(task=self, args=args, kwargs=kwargs, receives=False)

    def map(self, items: Iterable[Any], *, chunk: int = CHUNK) -> MapNode:
        """Return a step that calls the function with each item, ``chunk`` items per job.

        Its result is the list of return values. If a job is retried, it starts again with its first
        item.
        """
        return _map(self, "map", items, chunk)

    def starmap(self, calls: Iterable[Sequence[Any]], *, chunk: int = CHUNK) -> MapNode:
        """Return a step like ``map``, for items that are lists or tuples of arguments."""
        return _map(self, "starmap", calls, chunk)


def _map(task: Any, each: str, items: Iterable[Any], chunk: int) -> MapNode:
    if not (is_whole(chunk) and chunk > 0):
        raise InvalidTaskOption(f"{each}(chunk={chunk!r}): write a whole number above 0.")
    if task.takes_context:
        raise InvalidTaskOption(
            f"{task.module_path} takes a context, and there is one context for each job: with "
            f"{each}() it has several calls. Use group() instead."
        )
    return MapNode(task=task, each=each, items=_iterable(each, items), chunk=chunk)


def _iterable(where: str, thing: Any) -> Iterable[Any]:
    if isinstance(thing, Iterator):
        return MemberIterator(thing)
    try:
        iter(thing)
    except TypeError:
        raise InvalidTaskOption(f"{where}({thing!r}): pass an iterable.") from None
    return thing  # type: ignore[no-any-return] # asked


def _one_of(where: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise InvalidTaskOption(
            f"{where}(on_failure={value!r}): write one of {', '.join(map(repr, known))}."
        )
