"""What an operator can do: each operation is declared once, and every interface performs it.

The admin, the dashboard, the HTTP API and the commands read the permission, the question, the limit
and the answer from the same ``Operation``. They only parse what they are given and show ``Done``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.compat import InvalidTask, TaskResultDoesNotExist
from stoker.conf import Settings
from stoker.exceptions import (
    BrokerUnavailable,
    BulkOperationNotFound,
    ClusterNotFound,
    DeadLetterNotFound,
    NotMigrated,
    QueueNotFound,
    ScheduleNotFound,
    StokerError,
    WorkflowNotFound,
)

logger = logging.getLogger("stoker.operations")
LIMIT = 1000
"""Maximum number of jobs or dead letters that one click changes. More would delay the page."""
LONGEST_REASON = 255
NOT_FOUND = (
    BulkOperationNotFound,
    ClusterNotFound,
    DeadLetterNotFound,
    QueueNotFound,
    ScheduleNotFound,
    TaskResultDoesNotExist,
    WorkflowNotFound,
)


@dataclass(frozen=True, slots=True)
class Operator:
    """Who performs an operation, on which backend, and why."""

    settings: Settings
    by: str = ""
    because: str = ""

    @property
    def alias(self) -> str:
        """Return the name of the backend under ``TASKS``."""
        return self.settings.alias

    @property
    def signed(self) -> dict[str, Any]:
        """Return the arguments that say who acts, why, and on which backend."""
        return {"by": self.by, "because": self.because, "backend": self.alias}

    @property
    def cancellation(self) -> str:
        """Return the reason that is kept with a job or workflow that this operator cancels."""
        if not self.by:
            return self.because
        reason = f": {self.because}" if self.because else ""
        return f"cancelled by {self.by}{reason}"[:LONGEST_REASON]


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to an operation."""

    sentence: str
    is_good: bool = True
    """False: nothing was changed, and the sentence says why."""
    job_id: str = ""
    """The job to look at next; "" = none."""
    undo: Mapping[str, str] = field(default_factory=dict)
    """What to give to the operation that undoes this one; empty = it cannot be undone."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further members of the HTTP API's answer if nothing was changed."""
    value: Any = None
    """What the called function returned."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that an operator can do to one thing."""

    word: str
    """The verb, and the last part of its address in pages, such as ``pause``."""
    target: str
    """What it is done to: queue, job, letter, schedule, workflow or cluster."""
    permission: str
    act: Callable[..., Done]
    """Takes the operator, the target's name or id, and options of this operation."""
    label: str = ""
    """The text of the button; "" = the verb."""
    question: str = ""
    """What to ask before; ``{name}`` stands for the target. "" = do it at once."""
    is_grave: bool = False
    undo: str = ""
    """The verb of the operation that undoes this one."""
    things: str = ""
    """The plural of its target, for operations on many at once."""
    done: str = ""
    """The past participle, such as ``requeued``."""
    takes: tuple[str, ...] = ()
    """The options that a form asks for."""

    @property
    def name(self) -> str:
        """Return a unique name: that of its address in the dashboard, such as ``pause-queue``."""
        return f"{self.word}-{self.target}"

    @property
    def title(self) -> str:
        """Return the text of the button."""
        return self.label or self.word.capitalize()

    def attempt(self, operator: Operator, name: str, **options: Any) -> Done:
        """Perform the operation; a refusal becomes an answer.

        Raises:
            BrokerUnavailable, NotMigrated: The store cannot be read.
            StokerError, TaskResultDoesNotExist: There is no such target; see ``NOT_FOUND``.
        """
        try:
            done = self.act(operator, name, **options)
        except (BrokerUnavailable, NotMigrated, *NOT_FOUND):
            raise
        except (StokerError, InvalidTask, ValueError, TypeError) as error:
            return Done(first_line_of(error), is_good=False)
        self.record(operator, name, done)
        return done

    def record(self, operator: Operator, target: str, done: Done) -> None:
        """Write a line to the log: who did what to which target, and why."""
        by, because = (
            operator.by or "somebody",
            f" ({operator.because})" if operator.because else "",
        )
        logger.info("%s %s by %s%s: %s", self.name, target, by, because, done.sentence)

    def attempt_each(self, operator: Operator, names: Sequence[str]) -> Done:
        """Perform the operation on each target; one that is gone does not stop the others."""
        refusals = []
        for name in names:
            try:
                done = self.attempt(operator, name)
            except NOT_FOUND as error:
                done = Done(first_line_of(error), is_good=False)
            refusals += [] if done.is_good else [done.sentence]
        return self.sum_up(len(names), refusals)

    def sum_up(self, matched: int, refusals: Sequence[str]) -> Done:
        """Return the answer to an operation on many targets.

        Args:
            matched: How many targets there were.
            refusals: One sentence for each target that was left as it was.
        """
        sentence = f"{matched - len(refusals):,} of {matched:,} {self.things} {self.done}."
        if refusals:
            sentence += f" {len(refusals):,} not; the first: {refusals[0].rstrip('.')}."
        return Done(sentence, is_good=not refusals)


def first_line_of(error: BaseException) -> str:
    """Return the first line of the message, or the class if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
