"""Packages that differ in nothing but their ids and arguments, as those of one ``enqueue_many`` do:
what they have in common is written once. The bytes are those that ``Sealer.seal`` makes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from . import codec
from .package import Package, Sealer, head_of
from .serializers import copied

ID_ENDS = len('["') + 32
"""Where the id stands in a head as JSON."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def snapshot(args: Any, kwargs: Mapping[str, Any]) -> tuple[Arguments, bool]:
    """A copy of these arguments, which nobody changes; and whether it is JSON as it stands, so that
    nothing of the project's runs when it is written."""
    positional, named = tuple(args), dict(kwargs)
    if codec.ATOMS.issuperset(map(type, positional)) and (not named or codec.is_plain(named)):
        return (positional, copied(named) if named else named), True
    is_plain = codec.is_plain(list(positional)) and codec.is_plain(named)
    return (copied(positional), copied(named)), is_plain


class Alike:
    """Seals packages as JSON.

    Args:
        sealer: that of the backend.
        like: one of them: what counts is all but its id and arguments.
    """

    def __init__(self, sealer: Sealer, like: Package) -> None:
        self._sealer = sealer
        self._like = like
        head = codec.write(head_of(like))
        self._before, self._after = head[: ID_ENDS - 32], head[ID_ENDS:-1] + b","
        self._metadata = b"," + codec.write(codec.encode(dict(like.metadata))) + b"]"

    def seal(self, number: int, arguments: Arguments, *, is_plain: bool) -> bytes:
        """The package of this id and these arguments.

        Args:
            number: the id, as a number.
            is_plain: whether they are JSON as they stand.

        Raises: as ``Sealer.seal``.
        """
        args, kwargs = arguments
        if is_plain:
            with suppress(ValueError):  # found below, where it gets a name
                written = codec.write(args) + b"," + (codec.write(kwargs) if kwargs else b"{}")
                body = b"%b%032x%b%b%b" % (
                    self._before, number, self._after, written, self._metadata,
                )  # fmt: skip
                return self._sealer.close(self._like.task, body)
        own = replace(self._like, job_id=UUID(int=number), args=args, kwargs=kwargs)
        return self._sealer.seal(own)
