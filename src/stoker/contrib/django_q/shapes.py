"""``AsyncTask``, ``Iter`` and ``Chain``: calls that are put together first, and run later."""

from __future__ import annotations

from typing import Any

from .asking import count_group, fetch, fetch_group, result, result_group
from .spec import OPTIONS


class AsyncTask:
    """A call with its options, which can be changed until it is run.

    Each option of ``async_task`` is an attribute.
    """

    def __init__(self, func: Any, *args: Any, **kwargs: Any) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        if kwargs.get("q_options") is not None:  # a copy: the caller's own stays as it is
            self.kwargs["q_options"] = dict(kwargs["q_options"])
        self.id = ""
        self.started = False

    def run(self) -> str:
        """Make the job. Returns its id."""
        from .tasks import async_task

        self.id = async_task(self.func, *self.args, **self.kwargs)
        self.started = True
        return self.id

    def result(self, wait: int = 0) -> Any:
        """See ``tasks.result``."""
        return result(self.id, wait, self.cached) if self.started else None

    def fetch(self, wait: int = 0) -> Any:
        """See ``tasks.fetch``."""
        return fetch(self.id, wait, self.cached) if self.started else None

    def result_group(
        self, failures: bool = False, wait: int = 0, count: int | None = None
    ) -> list[Any] | None:
        """See ``tasks.result_group``."""
        return result_group(self.group, failures, wait, count, self.cached) if self.group else None

    def fetch_group(self, failures: bool = True, wait: int = 0, count: int | None = None) -> Any:
        """See ``tasks.fetch_group``."""
        return fetch_group(self.group, failures, wait, count, self.cached) if self.group else None

    def __getattr__(self, name: str) -> Any:
        if name in OPTIONS:
            options = self.kwargs.get("q_options") or {}
            return options.get(name, self.kwargs.get(name))
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OPTIONS:
            options = self.kwargs.get("q_options")
            (self.kwargs if options is None else options)[name] = value
            self.started = False
        else:
            super().__setattr__(name, value)


class Iter:
    """Calls of one function: see ``async_iter``."""

    def __init__(
        self,
        func: Any = None,
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
        cached: Any = None,
        sync: bool | None = None,
        broker: Any = None,
    ) -> None:
        self.func = func
        self.args: list[Any] = list(args or [])
        self.kwargs = kwargs or {}
        self.cached = cached
        self.sync = sync
        self.broker = broker
        self.id: str | None = None
        self.started = False

    def append(self, *args: Any) -> int:
        """Add a call. Returns how many there are."""
        self.args.append(args)
        self.started = False
        return self.length()

    def run(self) -> str:
        """Make the jobs. Returns the id of the Task that has their results."""
        from .tasks import async_iter

        options = {"cached": self.cached, "sync": self.sync, "broker": self.broker}
        given = {name: value for name, value in options.items() if value is not None}
        self.id = async_iter(self.func, self.args, **{**self.kwargs, **given})
        self.started = True
        return self.id

    def result(self, wait: int = 0) -> Any:
        """The results in the order of the calls. See ``tasks.result``."""
        return result(self.id, wait, self.cached) if self.started and self.id else None

    def fetch(self, wait: int = 0) -> Any:
        """See ``tasks.fetch``."""
        return fetch(self.id, wait, self.cached) if self.started and self.id else None

    def length(self) -> int:
        """How many calls there are."""
        return len(self.args)


class Chain:
    """Calls one after the other: see ``async_chain``."""

    def __init__(
        self,
        chain: Any = None,
        group: str | None = None,
        cached: Any = None,
        sync: bool | None = None,
        broker: Any = None,
    ) -> None:
        self.chain: list[Any] = list(chain or [])
        self.group = group
        self.cached = cached
        self.sync = sync
        self.broker = broker
        self.started = False

    def append(self, func: Any, *args: Any, **kwargs: Any) -> int:
        """Add a step. Returns how many there are."""
        self.chain.append((func, args, kwargs))
        self.started = False
        return self.length()

    def run(self) -> str:
        """Make the jobs. Returns the name of their group."""
        from .tasks import async_chain

        self.group = async_chain(list(self.chain), self.group, self.cached, self.sync, self.broker)
        self.started = True
        return self.group

    def result(self, wait: int = 0) -> list[Any] | None:
        """The results of all steps, when all have ended; those of steps before one that failed,
        never."""
        rows = self.fetch(failures=True, wait=wait)
        return None if rows is None else [row.result for row in rows]

    def fetch(self, failures: bool = True, wait: int = 0) -> Any:
        """The Tasks of all steps in their order, when all have ended."""
        if not self.started or self.group is None:
            return None
        rows = fetch_group(self.group, failures, wait, self.length(), self.cached)
        return None if rows is None else sorted(rows, key=lambda row: row.stopped)

    def current(self) -> int | None:
        """How many steps have ended; None = it was not run."""
        return count_group(str(self.group), cached=self.cached) if self.started else None

    def length(self) -> int:
        """How many steps there are."""
        return len(self.chain)
