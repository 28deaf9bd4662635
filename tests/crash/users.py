"""Users of the queue: a process that enqueues, cancels and requeues at random, holds rows in open
transactions, and may be killed at any moment. Usage: python -m tests.crash.users NUMBER SEED

It writes to the ledger before and after each action:

    will        it is about to enqueue a job with this token; the expected outcome
    made        enqueue() has returned this id; nothing is committed yet
    committing  the COMMIT is about to be sent (outside a transaction: the enqueue itself)
    committed   the COMMIT has succeeded
    rolled_back the transaction was rolled back on purpose
    unsure      an error was raised, so the outcome is unknown
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.crash.ledger import Ledger

PAUSE_SECONDS = 0.25
HOLD_SECONDS = 9.0
"""How long a slow view leaves its transaction open at most: one and a half leases."""
HOLD_SECONDS_SQLITE = 1.0
"""On SQLite an open transaction blocks all writers."""
REMEMBERED = 60


class RolledBackError(Exception):
    """Raised to roll a transaction back."""


class User:
    """One user and its recent jobs."""

    def __init__(self, number: int, seed: int) -> None:
        from django.conf import settings
        from django.db import connection

        self.number = number
        self.chance = random.Random(seed)
        self.ledger = Ledger(Path(settings.LEDGER))
        self.hold_seconds = HOLD_SECONDS_SQLITE if connection.vendor == "sqlite" else HOLD_SECONDS
        self._made = 0
        self._workflows: list[Any] = []
        self._results: list[Any] = []
        self._failing: list[str] = []
        self._held = 0.0

    def go_on(self) -> None:
        """Act at random until the parent process is gone; pause while it says so."""
        parent = os.getppid()
        names = list(ACTIONS)
        weights = [ACTIONS[name] for name in names]
        while os.getppid() == parent:
            self._rest_while_told_to(Path(os.environ["STOKER_CRASH_GO"]), parent)
            (name,) = self.chance.choices(names, weights)
            try:
                getattr(self, name)()
            except Exception as error:  # noqa: BLE001 - a user retries after any error
                self.ledger.write(
                    "trouble", action=name, error=f"{type(error).__name__}: {error}"[:300]
                )
                self._reconnect()
            time.sleep(self.chance.uniform(0, 2 * PAUSE_SECONDS))

    def _rest_while_told_to(self, go: Path, parent: int) -> None:
        if go.exists():
            return
        self.ledger.write("resting", number=self.number)
        while not go.exists() and os.getppid() == parent:
            time.sleep(0.05)

    # What users do.

    def enqueue_plainly(self) -> None:
        """Enqueue jobs in autocommit mode."""
        from tests.crash import tasks

        for _ in range(self.chance.randrange(1, 4)):
            with self._telling("plain", can_fail=False) as (token, told):
                told("committing")
                told("made", job=self._plain_call(tasks, token).id)

    def enqueue_in_transaction(self) -> None:
        """Enqueue several jobs in one transaction, which is sometimes rolled back."""
        from tests.crash import tasks

        with self._transaction() as enqueue:
            for _ in range(self.chance.randrange(1, 5)):
                enqueue("plain", lambda token: self._plain_call(tasks, token))

    def enqueue_many(self) -> None:
        from tests.crash import tasks

        with self._transaction() as enqueue:
            for _ in range(2):
                enqueue("plain", lambda token: tasks.plain.enqueue_many([((token,), {})])[0])

    def enqueue_late(self) -> None:
        """Enqueue jobs that must not start before their run_after."""
        from datetime import UTC, datetime, timedelta

        from tests.crash import tasks

        moment = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(0.2, 3))
        with self._transaction() as enqueue:
            enqueue(
                "plain",
                lambda token: tasks.plain.using(run_after=moment).enqueue(token),
                not_before=moment.timestamp(),
            )

    def enqueue_long(self) -> None:
        """Enqueue jobs some of which run for longer than a lease."""
        from tests.crash import tasks

        seconds = self.chance.choice([0.5, 1.0, 2.0, 7.0])
        with self._transaction() as enqueue:
            enqueue("plain", lambda token: tasks.plain.enqueue(token, seconds))

    def enqueue_flaky(self) -> None:
        from tests.crash import tasks

        with self._transaction() as enqueue:
            enqueue("plain", lambda token: tasks.plain.enqueue(token, 0, 2))

    def enqueue_once(self) -> None:
        """Enqueue jobs with one attempt."""
        from tests.crash import tasks

        with self._transaction() as enqueue:
            for _ in range(self.chance.randrange(1, 9)):
                seconds = self.chance.random() ** 4
                enqueue("once", lambda token, s=seconds: tasks.once.enqueue(token, s))

    def enqueue_guarded(self) -> None:
        from tests.crash import tasks

        key = f"{self.chance.randrange(4)}"
        seconds = self.chance.random() ** 6 * 3
        kind = self.chance.choice(["locked", "limited", "sequenced", "rated"])
        calls: dict[str, Callable[[str], Any]] = {
            "locked": lambda token: tasks.locked.enqueue(token, key, seconds),
            "limited": lambda token: tasks.limited.enqueue(token, key, seconds),
            "sequenced": lambda token: tasks.sequenced.enqueue(
                token, key, self.chance.randrange(2)
            ),
            "rated": tasks.rated.enqueue,
        }
        # The order of two concurrent transactions is undefined, so each user has its own sequences.
        facts = {"sequence": f"{self.number}:{key}"} if kind == "sequenced" else {}
        if kind == "sequenced":
            key = f"{self.number}:{key}"
        with self._transaction() as enqueue:
            for _ in range(self.chance.randrange(1, 16 if kind == "rated" else 4)):
                enqueue(kind, calls[kind], **facts)

    def enqueue_unique(self, hold: float = 0.0) -> None:
        from tests.crash import tasks

        key = f"{self.chance.randrange(4)}"
        with self._transaction(hold) as enqueue:
            enqueue("unique", lambda token: tasks.unique.enqueue(token, key, 0.1))

    def enqueue_workflow(self) -> None:
        from stoker import chain, chord

        from tests.crash import tasks

        def make(token: str) -> Any:
            step = tasks.plain.si
            if self.chance.random() < 0.5:
                flow = chain(step(f"{token}/0"), step(f"{token}/1", 0.1), step(f"{token}/2"))
            else:
                members = [step(f"{token}/{number}", 0.05) for number in range(4)]
                flow = chord(members, step(f"{token}/4"))
            return flow.enqueue(name=token)

        with self._transaction() as enqueue:
            enqueue("workflow", make)

    def cancel_job(self) -> None:
        """Enqueue a job and cancel it, perhaps while it starts."""
        from tests.crash import tasks

        with self._telling("cancelled") as (token, told):
            told("committing")
            delay = self.chance.choice([0.0, 0.3, 30.0])
            result = tasks.plain.using(run_after=delay).enqueue(token, 0.3)
            told("made", job=result.id)
        time.sleep(self.chance.random() * 0.6)
        is_cancelled = result.cancel("by the crash checker")
        if is_cancelled and str(result.state) == "CANCELLED":
            told("cancelled", job=result.id)

    def fail_and_requeue(self) -> None:
        """Let a job fail for good, and requeue an earlier one."""
        from tests.crash import tasks

        with self._telling("failing") as (token, told):
            told("committing")
            told("made", job=tasks.failing.enqueue(token).id)
        self._failing = [*self._failing, token][-REMEMBERED:]
        self._results = [*self._results, (token, told.job)][-REMEMBERED:]
        self._requeue(0.0)

    def hold_requeue(self) -> None:
        self._requeue(self._hold())

    def hold_unique(self) -> None:
        self.enqueue_unique(self._hold())

    def hold_cancelled_workflow(self) -> None:
        """Cancel a running workflow in a transaction that stays open, like a slow view."""
        from django.db import transaction

        from stoker import chain

        from tests.crash import tasks

        with self._telling("stopped workflow") as (token, told):
            step = tasks.plain.si
            steps = [step(f"{token}/{number}", 0.2) for number in range(6)]
            told("committing")
            flow = chain(*steps).enqueue(name=token)
            told("made", workflow=flow.id)
        time.sleep(self.chance.random())
        hold = self._hold()
        self.ledger.write("holds", what="workflow.cancel", seconds=hold)
        with transaction.atomic():
            flow.cancel("by the crash checker")
            time.sleep(hold)

    # Implementation.

    def _plain_call(self, tasks: Any, token: str) -> Any:
        seconds = self.chance.random() ** 6 * 0.5
        if self.chance.random() < 0.2:
            return tasks.plain_async.enqueue(token, seconds)
        return tasks.plain.enqueue(token, seconds)

    def _requeue(self, hold: float) -> None:
        from django.db import transaction

        from stoker import dead_letters
        from stoker.exceptions import DeadLetterNotFound

        if not self._results:
            return
        token, job_id = self._results.pop(0)
        with suppress(DeadLetterNotFound):
            self.ledger.write("will_requeue", token=token, job=job_id, hold=hold)
            with transaction.atomic():
                answer = dead_letters.requeue(job_id, by="crash", kwargs={"failures": 0})
                made = str(answer.job_id) if answer.job_id else None
                self.ledger.write("requeue", token=token, fate=answer.fate.value, job=made)
                time.sleep(hold)
            self.ledger.write("requeued", token=token, fate=answer.fate.value, job=made)

    def _hold(self) -> float:
        """Return for how many seconds to leave a transaction open."""
        return self.chance.random() * self.hold_seconds

    @contextmanager
    def _telling(self, kind: str, **facts: Any) -> Iterator[tuple[str, Any]]:
        """Write one enqueue outside a transaction to the ledger."""
        token = self._token()
        self.ledger.write("will", token=token, kind=kind, **facts)
        told = _Told(self.ledger, token)
        try:
            yield token, told
        except BaseException as error:
            self.ledger.write("unsure", token=token, error=f"{type(error).__name__}: {error}"[:300])
            raise
        told("committed")

    @contextmanager
    def _transaction(self, hold: float = 0.0) -> Iterator[Callable[..., None]]:
        """Write several enqueues in one transaction, which is sometimes rolled back."""
        from django.db import transaction

        tokens: list[str] = []

        def enqueue(kind: str, make: Callable[[str], Any], **facts: Any) -> None:
            token = self._token()
            tokens.append(token)
            self.ledger.write("will", token=token, kind=kind, **facts)
            made = make(token)
            what = "workflow" if kind == "workflow" else "job"
            duplicate = bool(getattr(made, "was_duplicate", False))
            self.ledger.write("made", token=token, duplicate=duplicate, **{what: made.id})

        rolls_back = self.chance.random() < 0.12
        outcome = "unsure"
        try:
            with transaction.atomic():
                yield enqueue
                if hold:
                    self.ledger.write("holds", what="unique enqueue", seconds=hold)
                time.sleep(hold or self.chance.random() * 0.05)
                if rolls_back:
                    raise RolledBackError  # noqa: TRY301 - a user's own code raises it
                for token in tokens:
                    self.ledger.write("committing", token=token)
            outcome = "committed"
        except RolledBackError:
            outcome = "rolled_back"
        finally:
            for token in tokens:
                self.ledger.write(outcome, token=token)

    def _token(self) -> str:
        self._made += 1
        return f"{self.number}.{os.getpid()}.{self._made}"

    def _reconnect(self) -> None:
        from django.db import connections

        for connection in connections.all(initialized_only=True):
            with suppress(Exception):
                connection.close()
            # An error inside atomic() that could not be rolled back leaves these behind.
            connection.in_atomic_block = False
            connection.needs_rollback = False
            connection.savepoint_ids = []


class _Told:
    """Writes the events of one token."""

    def __init__(self, ledger: Ledger, token: str) -> None:
        self._ledger = ledger
        self._token = token
        self.job = ""

    def __call__(self, event: str, **facts: Any) -> None:
        self.job = facts.get("job", self.job)
        self._ledger.write(event, token=self._token, **facts)


ACTIONS = {
    "enqueue_plainly": 15,
    "enqueue_in_transaction": 12,
    "enqueue_many": 3,
    "enqueue_late": 4,
    "enqueue_long": 5,
    "enqueue_flaky": 3,
    "enqueue_once": 8,
    "enqueue_guarded": 10,
    "enqueue_unique": 6,
    "enqueue_workflow": 4,
    "cancel_job": 3,
    "fail_and_requeue": 4,
    "hold_requeue": 1,
    "hold_unique": 1,
    "hold_cancelled_workflow": 1,
}
"""The actions of users and their weights."""


def main() -> None:
    """Run a user until the parent process is gone."""
    import django

    django.setup()
    User(int(sys.argv[1]), int(sys.argv[2])).go_on()


if __name__ == "__main__":
    main()
