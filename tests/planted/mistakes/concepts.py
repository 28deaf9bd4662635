"""Mistakes in guards, locks, schedules and workflows."""

from tests.planted.mistake import Change, Mistake
from tests.planted.operations import drop, drop_keyword, replace

MISTAKES = (
    Mistake(
        "a tick is fired before it is due",
        [Change("schedules.fire:Firing._fire", replace("row.due_us > now", "not now"))],
        "tests/integration/test_schedules.py",
        "becomes_a_job_once",
    ),
    Mistake(
        "a tick that is there already is fired again",
        [
            Change(
                "schedules.fire:Firing._fire",
                replace(
                    "insert_ticks(self._ticks, progress.ticks)",
                    "self._ticks.bulk_create(progress.ticks, ignore_conflicts=True)",
                ),
            )
        ],
        "tests/integration/test_schedules.py",
        "not_fired_again",
    ),
    Mistake(
        "of a time that comes twice, the second is taken",
        [
            Change(
                "values.cron:instant_of",
                replace("wall.replace(tzinfo=zone, fold=0)", "wall.replace(tzinfo=zone, fold=1)"),
            )
        ],
        "tests/unit/schedules/test_rules.py",
    ),
    Mistake(
        "an old edition of the code overrules the newest",
        [
            Change(
                "schedules.declare:Declaring.sync",
                replace("alive[:1] != [self._digest]", "not alive"),
            )
        ],
        "tests/integration/test_declared_schedules.py",
        "flap",
    ),
    Mistake(
        "a group is over though members are open",
        [
            Change(
                "workflows.advance:Advance._complete",
                replace("members.filter(state__in=OPEN)", "members.filter(state__in=())"),
            )
        ],
        "tests/workflows/test_flow.py",
    ),
    Mistake(
        "what a failed attempt has added is part of the workflow",
        [
            Change(
                "workflows.advance:Advance._adopt",
                drop_keyword(
                    "self._steps.below([step.pk]).filter(state=State.HELD, added_in=attempt)",
                    "added_in",
                ),
            )
        ],
        "tests/workflows/test_flow.py",
        "added",
    ),
    Mistake(
        "a step goes on as often as its end is recorded",
        [
            Change(
                "workflows.advance:Advance.record",
                replace("ours.filter(state=State.ENQUEUED)", "ours"),
            )
        ],
        "tests/workflows/test_life.py",
        "recorded_again",
        needs_redis=True,
    ),
    Mistake(
        "nobody is told of what fails together with what holds it",
        [Change("workflows.advance:Advance.go_on", drop("self._call_back(wave)"))],
        "tests/workflows/test_batches.py",
        "on_error",
    ),
    Mistake(
        "two who retry a workflow send the same job again",
        [
            Change(
                "workflows.control:_redo",
                replace(
                    "not reopen(alias, job.pk, job_id)",
                    "not reopen(alias, job.pk, job_id) and False",
                ),
            )
        ],
        "tests/workflows/test_batches.py",
        "retries",
    ),
    Mistake(
        "a requeue that is taken back leaves its workflow running",
        [
            Change(
                "workflows.follow:record_taken_back",
                drop("give_back(alias, job_id, failed_job_id)"),
            )
        ],
        "tests/integration/test_undo_requeue.py",
        "workflow",
    ),
)
