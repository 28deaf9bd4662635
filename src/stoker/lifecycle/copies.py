"""Many plain calls of one task, which become jobs by COPY: without guards, and with nobody to be
asked about each. They are sealed while the server takes in those before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload
from uuid import UUID

from stoker.conf import Settings
from stoker.ids import LINKED, new_job_numbers
from stoker.models.copying import InCommon, copy_jobs
from stoker.options import is_guarded
from stoker.package import sealer_for
from stoker.packages_alike import Alike, Arguments, snapshot
from stoker.results import Result
from stoker.signals import pre_enqueue

from .calling import refuse_wrong_arguments
from .sealing import Call, Sealing


class Results(Sequence[Result[Any]]):
    """The results of many jobs, each made when it is asked for: most never are."""

    def __init__(self, make: Callable[[int], Result[Any]], count: int) -> None:
        self._make = make
        self._count = count
        self._made: dict[int, Result[Any]] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Result[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result[Any]]: ...
    def __getitem__(self, index: int | slice) -> Result[Any] | list[Result[Any]]:
        places = range(self._count)[index]
        if isinstance(places, range):
            return [self._get(place) for place in places]
        return self._get(places)

    def __iter__(self) -> Iterator[Result[Any]]:
        return map(self._get, range(self._count))

    def __add__(self, others: Sequence[Result[Any]]) -> list[Result[Any]]:
        return [*self, *others]

    def __radd__(self, others: Sequence[Result[Any]]) -> list[Result[Any]]:
        return [*others, *self]

    def __repr__(self) -> str:
        return f"<the results of {self._count} jobs>"

    def _get(self, place: int) -> Result[Any]:
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]


class Copies:
    """Calls of one task on their way into the store.

    Args:
        calls: all of them; they are looked at, and copied, here.

    Raises: as ``Sealing.seal``; ``store`` may find one that is too large.
    """

    def __init__(
        self, settings: Settings, task: Any, sealing: Sealing, calls: Sequence[Call]
    ) -> None:
        self._alias = settings.database
        self._sealing = sealing
        self._like, self._run_after = sealing.in_common()
        self._alike = Alike(sealer_for(settings), self._like)
        self._numbers = new_job_numbers(len(calls), LINKED if sealing.has_hooks else 0)
        self._arguments: list[Arguments] = []
        self._sealed: dict[int, bytes] = {}
        """Those that the project's own code may be called for: not while the connection is busy."""
        for number, (args, kwargs) in zip(self._numbers, calls, strict=True):
            arguments, is_plain = snapshot(args, kwargs)
            refuse_wrong_arguments(task, *arguments)
            self._arguments.append(arguments)
            if not is_plain:
                self._sealed[number] = self._alike.seal(number, arguments, is_plain=False)

    def store(self) -> Results:
        """Store the jobs, in the open transaction."""
        like = self._like
        common = InCommon(like.task, like.queue, like.priority, like.enqueued_at, self._run_after)
        copy_jobs(self._alias, self._rows(), common)
        return Results(self._result, len(self._numbers))

    def _rows(self) -> Iterable[tuple[int, bytes]]:
        seal, sealed = self._alike.seal, self._sealed
        for number, arguments in zip(self._numbers, self._arguments, strict=True):
            yield number, sealed.get(number) or seal(number, arguments, is_plain=True)

    def _result(self, place: int) -> Result[Any]:
        args, kwargs = self._arguments[place]
        job_id = UUID(int=self._numbers[place])
        package = replace(self._like, job_id=job_id, args=args, kwargs=kwargs)
        return self._sealing.result(package, self._run_after)


def may_be_copied(settings: Settings, task: Any) -> bool:
    """Whether nobody has a say about each single job of this task, and none of the project's code
    is called when its arguments are written."""
    return not (is_guarded(task) or pre_enqueue.receivers or settings.serializer == "pickle")
