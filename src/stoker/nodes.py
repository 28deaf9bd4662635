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

from .compat import DEFAULT_TASK_BACKEND_ALIAS, is_task, task_backends
from .exceptions import InvalidTaskOption

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
