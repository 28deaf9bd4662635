"""Operations on many jobs or dead letters: start, show, pause, resume, stop, undo."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Status
from pydantic import Field

from stoker.api.access import Routes, example_of_body, operator_of, perform, permitted
from stoker.api.filters import NO_REASON, Body, Mark, PageLimit, ReasonBody
from stoker.api.problems import CallRefused
from stoker.api.shapes import BulkOperationPageShape, BulkOperationShape
from stoker.api.values import Backend, Moment, Name, Strict, cursor_of, mark_of, settings_of
from stoker.models import BulkOperation
from stoker.operations import bulk
from stoker.operations.bulk_walk import BY_NAME
from stoker.operations.operation import Operation
from stoker.store.engines.sessions import explained
from stoker.values.text import first_line_of

routes = Routes(tags=["bulk operations"])


class BulkFilters(Body):
    """Filters that find the targets. Only open dead letters are found. A filter that is left out
    matches all. A filter that the operation does not take is refused."""

    q: Annotated[str, Field(max_length=200)] = ""
    """A text that is searched as in the list of jobs or dead letters."""
    state: Literal["", "READY", "DEFERRED", "BLOCKED", "RUNNING"] = ""
    """For jobs."""
    task: Name = ""
    queue: Annotated[str, Field(max_length=100)] = ""
    node: Name = ""
    since: Moment | None = None
    until: Moment | None = None
    reason: Annotated[str, Field(max_length=20)] = ""
    """For dead letters, like `fingerprint`."""
    fingerprint: Annotated[str, Field(max_length=64)] = ""
    workflow: UUID | None = None
    """For `retry-step`: the workflow whose failed steps are retried. It cannot be combined with
    other filters."""

    def given(self) -> dict[str, str]:
        """Return the filters as the parameters of a list's query string."""
        texts = {name: getattr(self, name) for name in type(self).model_fields}
        moments = {name: texts[name] and texts[name].isoformat() for name in ("since", "until")}
        return bulk.given_filters({**texts, **moments})


class BulkRequest(ReasonBody):
    """A bulk operation to start."""

    operation: Literal[tuple(BY_NAME)]  # type: ignore[valid-type] # as they are declared
    filters: BulkFilters = BulkFilters()
    ids: Annotated[list[UUID], Field(max_length=bulk.MOST_IDS)] | None = None
    """The targets, at least one. `filters` and `all` must be left out."""
    all: Annotated[bool, Strict] = False
    """Required to start without a filter."""
    queue: Annotated[str, Field(max_length=100)] = ""
    """For `move-job`."""
    priority: Annotated[int, Strict, Field(ge=-100, le=100)] | None = None
    """For `prioritise-job`."""
    run_after: Annotated[str, Field(max_length=50)] = ""
    """For `reschedule-job`: a moment, or a duration such as `2h`."""
    arguments: dict[str, Any] | None = None
    """For `requeue-letter` and `edit-job`: new values by name. `"{order_id}"` stands for an old
    argument."""
    dry_run: Annotated[bool, Strict] = False
    """Only count the targets; change nothing."""

    def targets(self) -> dict[str, Any]:
        """Return the filters of the operation, or its ids.

        Raises:
            CallRefused: it is not clear which targets are wanted.
        """
        filters = self.filters.given()
        if self.ids is None:
            if not (filters or self.all or self.dry_run):
                raise CallRefused(422, "filters: give at least one, or ids, or all: true.")
            return filters
        if not self.ids or filters or self.all:
            raise CallRefused(422, "ids: give at least one, and leave out filters and all.")
        return {"ids": [str(one) for one in self.ids]}

    def options(self) -> dict[str, Any]:
        """Return the options of the operation."""
        given = {"queue": self.queue, "run_after": self.run_after, "arguments": self.arguments}
        if self.priority is not None:
            given["priority"] = str(self.priority)
        return {name: value for name, value in given.items() if value}


@routes.show("/bulk", bulk.VIEW, BulkOperationPageShape)
def list_bulk_operations(
    request: HttpRequest,
    limit: PageLimit = 50,
    after: Mark | None = None,
    backend: Backend = None,
) -> Any:
    """List the bulk operations of the last 90 days, the newest first. A page searches 10,000
    operations, including those on one target."""
    settings, mark = settings_of(backend), mark_of(after)
    with explained(settings.database):
        page = bulk.find(settings, limit, mark or "")
    return {"operations": page.rows, "next": cursor_of(page.next), "is_cut": page.is_cut}


@routes.route(
    "POST",
    "/bulk",
    permissions=(bulk.VIEW,),
    answers={201: BulkOperationShape, 200: BulkOperationShape, 409: ...},
    extra=example_of_body(
        {
            "operation": "requeue-letter",
            "filters": {"q": "connection refused", "since": "2030-01-31T06:00:00Z"},
            "arguments": {"currency": "EUR"},
            "because": "the bank is back",
        }
    ),
)
def start_bulk_operation(request: HttpRequest, body: BulkRequest, backend: Backend = None) -> Any:
    """Start an operation on many jobs or dead letters, which continues in the background. The user
    also needs the permission for the operation and, with the filter `q`, the one to see the
    targets. 200: a dry run."""
    operation: Operation = BY_NAME[body.operation]
    to_search = bulk.permissions_to_search(operation.target, body.filters.given())
    permitted(request.auth, [operation.permission, *to_search])  # type: ignore[attr-defined] # ninja sets it
    operator = operator_of(request, backend, body.because)
    filters = body.targets()
    try:
        if body.dry_run:
            return Status(200, bulk.preview(operator, operation, filters, body.options()))
        row = bulk.start(operator, operation, filters, body.options())
    except ValueError as error:
        raise CallRefused(422, first_line_of(error)) from error
    return Status(201, row)


@routes.show("/bulk/{bulk_id}", bulk.VIEW, BulkOperationShape)
def get_bulk_operation(request: HttpRequest, bulk_id: UUID, backend: Backend = None) -> Any:
    """Show the progress of a bulk operation."""
    return bulk.get(settings_of(backend), bulk_id)


@routes.change("/bulk/{bulk_id}/pause", bulk.PAUSE, BulkOperationShape, may_conflict=True)
def pause_bulk_operation(
    request: HttpRequest, bulk_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Pause a bulk operation until it is resumed. 409: it does not run."""
    return _changed(request, bulk.PAUSE, bulk_id, body, backend)


@routes.change("/bulk/{bulk_id}/resume", bulk.RESUME, BulkOperationShape, may_conflict=True)
def resume_bulk_operation(
    request: HttpRequest, bulk_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Continue a paused bulk operation. 409: it is not paused."""
    return _changed(request, bulk.RESUME, bulk_id, body, backend)


@routes.change("/bulk/{bulk_id}/stop", bulk.STOP, BulkOperationShape, may_conflict=True)
def stop_bulk_operation(
    request: HttpRequest, bulk_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Stop a bulk operation. The changes that it has made are kept. 409: it has already ended."""
    return _changed(request, bulk.STOP, bulk_id, body, backend)


@routes.change("/bulk/{bulk_id}/undo", bulk.UNDO, BulkOperationShape, may_conflict=True)
def undo_bulk_operation(
    request: HttpRequest, bulk_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Undo a bulk operation that has ended. The answer is a new bulk operation. 409: it has no
    undo, or was undone before."""
    return _changed(request, bulk.UNDO, bulk_id, body, backend)


def _changed(
    request: HttpRequest, operation: Operation, bulk_id: UUID, body: ReasonBody, backend: str | None
) -> BulkOperation:
    operator = operator_of(request, backend, body.because)
    started: Operation = BY_NAME[bulk.get(operator.settings, bulk_id).operation]
    permitted(request.auth, [started.permission])  # type: ignore[attr-defined] # ninja sets it
    done = perform(operation, operator, str(bulk_id))
    return bulk.get(operator.settings, done.value.pk if done.value else bulk_id)
