"""Mistakes in jobs, tasks and dead letters."""

from tests.planted.mistake import Change, Mistake
from tests.planted.operations import drop, drop_operand, lift, repeat, replace

MISTAKES = (
    Mistake(
        "a job that was to wait counts as late",
        [
            Change(
                "jobs.tallies:_add_times",
                replace(
                    "max(enqueued_at, run_after) if run_after else enqueued_at",
                    "max(enqueued_at, run_after) if False else enqueued_at",
                ),
            )
        ],
        "tests/integration/test_metrics.py",
        "not_late",
    ),
    Mistake(
        "a lost worker's failure is reported by nobody",
        [
            Change(
                "jobs.announce:announce",
                drop_operand("outcomes.Crashed | outcomes.TimedOut", "outcomes.Crashed"),
            )
        ],
        "tests/lifecycle/test_failures.py",
        "lost",
    ),
    Mistake(
        "any task can be enqueued from outside",
        [Change("tasks.registry:expose", drop("if not task.exposed:\n    return"))],
        "tests/unit/test_exposure.py",
    ),
    Mistake(
        "each package is opened twice",
        [Change("jobs.execute:Executor.open", repeat("package = self._sealer.open(...)"))],
        "tests/test_benchmark_guard.py",
    ),
    Mistake(
        "ack and record are two transactions",
        [
            Change(
                "jobs.record:finish",
                replace("transaction_for(settings.database, over)", "nullcontext()"),
            )
        ],
        "tests/lifecycle/test_finish.py",
        "not_acked",
    ),
    Mistake(
        "of jobs that succeed together, ack and record are two transactions",
        [
            Change(
                "jobs.record:finish_together",
                replace("transaction.atomic(using=alias)", "nullcontext()"),
            )
        ],
        "tests/lifecycle/test_successes.py",
        "not_acked",
    ),
    Mistake(
        "crashes are not counted",
        [Change("jobs.record:_resolve", replace("1", "0"))],
        "tests/lifecycle/test_finish.py",
        "moves",
    ),
    Mistake(
        "a snooze uses up an attempt",
        [Change("jobs.record:_return", replace("1", "0"))],
        "tests/lifecycle/test_finish.py",
        "moves",
    ),
    Mistake(
        "an atomic task is acked outside of its transaction",
        [Change("jobs.execute:run_and_record", lift("_refuse_stale(...)"))],
        "tests/lifecycle/test_atomic.py",
    ),
    Mistake(
        "an atomic task in a cluster is acked outside of its transaction",
        [Change("jobs.execute:run_and_record", lift("_refuse_stale(...)"))],
        "tests/story/test_atomic.py",
        database="postgres",
        needs_cluster=True,
    ),
    Mistake(
        "an atomic task with a stale lease is committed",
        [Change("jobs.execute:_refuse_stale", replace("stale", "not stale and stale"))],
        "tests/lifecycle/test_atomic.py",
    ),
    Mistake(
        "the time limit of an atomic task goes on while it is recorded",
        [
            Change(
                "jobs.execute:Executor._complete",
                replace(
                    "return run_and_record(...)",
                    "with self._limit(9.0):\n    return run_and_record("
                    "self.settings, lambda: self._try(opened), attempted)",
                ),
            )
        ],
        "tests/lifecycle/test_atomic.py",
    ),
    Mistake(
        "a job that was blocked while it was held is never called",
        [Change("jobs.enqueue:_Line._commit", drop("look_after(self._alias, self._neglected)"))],
        "tests/guards/test_unique_transactions.py",
        "is_blocked",
        database="postgres",
    ),
    Mistake(
        "a replaced job keeps the package of another id",
        [Change("jobs.sealing:Sealing.again", drop("data = self._sealer.seal(package)"))],
        "tests/guards/test_unique.py",
        "what_the_newcomer_says",
    ),
    Mistake(
        "who was cancelled before it began is not told",
        [Change("jobs.execute:Executor._call", drop("opened.interruption.check()"))],
        "tests/lifecycle/test_atomic.py",
        "before_it_began",
    ),
    Mistake(
        "a failure whose ack was repeated counts twice",
        [
            Change(
                "jobs.record:finish",
                replace(
                    "done = _recorded(settings, verdicts) if is_again else set()",
                    "done: set[Lease] = set()",
                ),
            )
        ],
        "tests/integration/test_fronted.py",
        "recorded_again",
        needs_redis=True,
    ),
    Mistake(
        "a requeue that is taken back lets a halted sequence go on",
        [
            Change(
                "dead_letters.requeueing:_take_back", drop("halt_again(alias, halts, seen.job_id)")
            )
        ],
        "tests/integration/test_undo_requeue.py",
        "sequence",
    ),
    Mistake(
        "a job that has been tried is withdrawn with its requeue",
        [
            Change(
                "dead_letters.requeueing:_take_back",
                drop_operand(
                    "not was_waiting or _",
                    "_.exists()",
                ),
            )
        ],
        "tests/integration/test_undo_requeue.py",
        "next_attempt",
    ),
)
