"""The operations of operators. Each operation is declared once, and every interface performs it.

The admin, the dashboard, the HTTP API and the commands read the permission, the question, the limit
and the answer from the same ``Operation``. They only parse the input and show ``Done``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from stoker.compat import InvalidTask, TaskResultDoesNotExist
from stoker.conf import Settings
from stoker.exceptions import (
    BrokerUnavailable,
    BulkOperationNotFound,
    ClusterNotFound,
    DeadLetterNotFound,
    GuardNotFound,
    NotMigrated,
    QueueNotFound,
    ScheduleNotFound,
    StokerError,
    WorkflowNotFound,
)
from stoker.models import BulkItem, BulkOperation
from stoker.store.engines.sessions import explained
from stoker.values.ids import new_job_id
from stoker.values.progress import told_to
from stoker.values.text import first_line_of, plural, shown_line

logger = logging.getLogger("stoker.operations")
LIMIT = 1000
"""Maximum number of jobs or dead letters to change in one request. A higher number would delay the
page."""
LONGEST_REASON = 255
LONGEST_NAME = 150
LONGEST_TARGET = 255
NOT_FOUND = (
    BulkOperationNotFound,
    ClusterNotFound,
    DeadLetterNotFound,
    GuardNotFound,
    QueueNotFound,
    ScheduleNotFound,
    TaskResultDoesNotExist,
    WorkflowNotFound,
)


@dataclass(frozen=True, slots=True)
class Operator:
    """The user who performs an operation, the backend, and the reason."""

    settings: Settings
    by: str = ""
    because: str = ""

    @property
    def alias(self) -> str:
        """Return the name of the backend under ``TASKS``."""
        return self.settings.alias

    @property
    def signed(self) -> dict[str, Any]:
        """Return the keyword arguments ``by``, ``because`` and ``backend`` for a call."""
        return {"by": self.by, "because": self.because, "backend": self.alias}

    @property
    def cancellation(self) -> str:
        """Return the reason to store with a job or workflow that this operator cancels."""
        if not self.by:
            return self.because
        reason = f": {self.because}" if self.because else ""
        return f"cancelled by {self.by}{reason}"[:LONGEST_REASON]


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to an operation."""

    sentence: str
    is_good: bool = True
    """Whether the operation was carried out. False: nothing was changed, and the sentence says
    why."""
    job_id: str = ""
    """The job whose page to show next; "" = none."""
    undo: Mapping[str, str] = field(default_factory=dict)
    """Arguments for the operation that undoes this one; empty = it cannot be undone."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further members of the HTTP API's answer to a refused operation."""
    value: Any = None
    """The return value of the function that the operation called."""
    count: int = 1
    """Number of changed targets."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """The previous values of a changed job, which are stored for the undo."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An action of an operator on one target."""

    word: str
    """The verb, which is also the last part of its URL, such as ``pause``."""
    target: str
    """The kind of its target: queue, guard, job, letter, schedule, workflow or cluster."""
    permission: str
    act: Callable[..., Done]
    """The function that performs it. It takes the operator, the target's name or id, and the
    options of this operation."""
    label: str = ""
    """The text of the button; "" = the verb."""
    question: str = ""
    """The text of the confirmation page; ``{name}`` stands for the target. "" = no confirmation."""
    is_grave: bool = False
    undo: str = ""
    """The verb of the operation that undoes this one."""
    things: str = ""
    """The plural of its target, for operations on many targets at once."""
    done: str = ""
    """The past participle, such as ``requeued``."""
    has_batches: bool = False
    """Whether it changes many targets, in several transactions."""
    takes: tuple[str, ...] = ()
    """The options that a form asks for."""

    @property
    def name(self) -> str:
        """Return its unique name, such as ``pause-queue``, which is also a part of its URL in
        the dashboard."""
        return f"{self.word}-{self.target}"

    @property
    def title(self) -> str:
        """Return the text of the button."""
        return self.label or self.word.capitalize()

    def attempt(self, operator: Operator, name: str, **options: Any) -> Done:
        """Perform the operation. Return refusals as an answer instead of raising them.

        Raises:
            BrokerUnavailable, NotMigrated: The store cannot be read.
            StokerError, TaskResultDoesNotExist: There is no such target; see ``NOT_FOUND``.
        """
        try:
            return self.perform(operator, name, **options)
        except (BrokerUnavailable, NotMigrated, *NOT_FOUND):
            raise
        except (StokerError, InvalidTask, ValueError, TypeError) as error:
            return Done(first_line_of(error), is_good=False)

    def perform(self, operator: Operator, name: Any, **options: Any) -> Done:
        """Perform the operation and record it."""
        if not self.has_batches or options.get("dry_run"):
            return self.record(operator, str(name), self.act(operator, name, **options))
        with self.recorded_if_interrupted(operator, str(name)):
            done = self.act(operator, name, **options)
        return self.record(operator, str(name), done)

    @contextmanager
    def recorded_if_interrupted(self, operator: Operator, target: str) -> Iterator[None]:
        """Log the start of an operation with several transactions. If the block raises, record how
        many targets were processed before."""
        processed = 0

        def note(done: int, _total: int | None) -> None:
            nonlocal processed
            processed = done

        self.log(operator, target, Done("Started."))
        try:
            with told_to(note):
                yield
        except BaseException:
            if processed:
                done = Done(f"Interrupted after {plural(processed, 'target')}.", count=processed)
                with suppress(Exception):  # the database may be away; the log has it
                    self.record(operator, target, done)
            raise

    def record(self, operator: Operator, target: str, done: Done) -> Done:
        """Log the operation, and return its answer.

        If the operation changed something, store a row for the audit page and the previous values
        for the undo, and add the arguments of the undo to the answer.
        """
        self.log(operator, target, done)
        if not (done.is_good and done.count):
            return done
        row = BulkOperation(
            pk=new_job_id(),
            backend=operator.alias,
            operation=self.name,
            filters={"target": target[:LONGEST_TARGET]},
            by=operator.by[:LONGEST_NAME],
            because=operator.because[:LONGEST_REASON],
            state=BulkOperation.State.DONE,
            matched=done.count,
            done=done.count,
            started_at=timezone.now(),
            ended_at=timezone.now(),
        )
        alias = operator.settings.database
        try:
            with explained(alias), transaction.atomic(using=alias):
                row.save(using=alias, force_insert=True)
                if done.before:
                    BulkItem.objects.using(alias).create(
                        bulk_id=row.pk, target=UUID(target), before=done.before
                    )
        except StokerError as error:  # it is done, and the log has it
            logger.warning("%s %s was not recorded: %s", self.name, target, error)
            return done
        return replace(done, undo={"bulk": str(row.pk)}) if done.before else done

    def log(self, operator: Operator, target: str, done: Done) -> None:
        """Log the user, the operation, the target and the reason."""
        by = operator.by or "an unknown user"
        because = f" ({operator.because})" if operator.because else ""
        said = f"{self.name} {target} by {by}{because}: {done.sentence}"
        logger.info("%s", shown_line(said))

    def attempt_each(self, operator: Operator, names: Sequence[str]) -> Done:
        """Perform the operation on each target. Skip targets that no longer exist."""
        refusals = []
        for name in names:
            try:
                done = self.attempt(operator, name)
            except NOT_FOUND as error:
                done = Done(first_line_of(error), is_good=False)
            refusals += [] if done.is_good else [done.sentence]
        count = len(names)
        sentence = f"{count - len(refusals):,} of {count:,} {self.things} {self.done}."
        if refusals:
            sentence += f" {len(refusals):,} not; the first: {refusals[0].rstrip('.')}."
        return Done(sentence, is_good=not refusals)
