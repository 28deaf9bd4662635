"""How routes are declared: each says which permissions it takes, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from ninja import Router

from .access import SessionUser, TokenUser
from .problems import Problem

View = TypeVar("View", bound=Callable[..., Any])

PROBLEMS = (400, 401, 403, 404, 422, 503)
"""What every call may come to."""
PROBLEMS_OF_BODIES = (413, 415)
PROBLEMS_OF_OPEN = (400, 404, 422)


class Open(Enum):
    """In the place of permissions."""

    TO_ALL = "to all"
    """Anybody may call, without saying who he is. For what a probe of a platform asks."""


class Routes(Router):
    """Routes of one kind of thing. There is no route without ``permissions``."""

    def route(
        self,
        method: str,
        path: str,
        *,
        permissions: tuple[str, ...] | Open,
        answers: dict[int, Any],
        example: Any = None,
    ) -> Callable[[View], View]:
        """Declare a route.

        Args:
            permissions: all of these are needed, as ``stoker.view_job``.
            answers: status -> shape; ``...`` = a problem.
            example: of what is sent.
        """
        is_open = isinstance(permissions, Open)
        needed: tuple[str, ...] = () if isinstance(permissions, Open) else permissions
        if not is_open and not needed:
            raise ValueError(f"{method} {path} names no permission")
        problems: tuple[int, ...] = PROBLEMS_OF_OPEN if is_open else PROBLEMS
        if method != "GET":
            problems += PROBLEMS_OF_BODIES
        extra: dict[str, Any] = {"x-permissions": list(needed)}
        if example is not None:
            extra["requestBody"] = {"content": {"application/json": {"example": example}}}

        def declare(view: View) -> View:
            self.add_api_operation(
                path,
                [method],
                view,
                auth=None if is_open else [SessionUser(needed), TokenUser(needed)],
                response=dict.fromkeys(problems, Problem)
                | {status: Problem if one is ... else one for status, one in answers.items()},
                operation_id=view.__name__,
                url_name=view.__name__,
                openapi_extra=extra,
            )
            return view

        return declare
