"""Mistakes in what people and programs look at: admin, API, dashboard, reporters, inspection."""

from tests.planted.mistake import Change, Mistake, Text
from tests.planted.operations import drop, drop_operand, replace

MISTAKES = (
    Mistake(
        "nobody is told that the queue is paused",
        [
            Change(
                "inspect.why.waiting:answer_ready",
                drop_operand(
                    "_ or _paused(asked) or _ or _ or _",
                    "_paused(asked)",
                ),
            )
        ],
        "tests/integration/test_why.py",
        "queue_is_paused",
    ),
    Mistake(
        "a reporter is told secrets",
        [Change("reporters.facts:_in_short", replace("name", "''"))],
        "tests/unit/reporters/test_facts.py",
    ),
    Mistake(
        "metrics are told to anybody",
        [
            Change(
                "reporters.prometheus:is_token", drop_operand("bool(given) and _", "bool(given)")
            ),
            Change(
                "reporters.prometheus:is_token",
                drop_operand("reporter.token and _", "reporter.token"),
            ),
        ],
        "tests/reporters/test_prometheus.py",
        "no_token_opens_it",
    ),
    Mistake(
        "a permission of the API is not asked for",
        [Change("api.access:permitted", replace("user.has_perm(permission)", "permission"))],
        "tests/api/test_permissions.py",
        "gets_403",
        database="postgres",
    ),
    Mistake(
        "a session changes something without the CSRF token",
        [
            Change(
                "api.access:SessionUser.__call__",
                replace("check_csrf(request) is not None", "user.is_anonymous"),
            )
        ],
        "tests/api/test_permissions.py",
        "csrf",
        database="postgres",
    ),
    Mistake(
        "the doctor makes lost jobs ready twice",
        [
            Change(
                "inspect.doctor.looks:Jobs.mend",
                replace(
                    "[alive[one] for one in alive.keys() - places_of(self.alias, alive).keys()]",
                    "[*alive.values()]",
                ),
            )
        ],
        "tests/integration/test_doctor.py",
        "looked_at_once_more",
    ),
    Mistake(
        "what was not signed is unpickled whatever it holds",
        [
            Change(
                "contrib.django_q.importing:_PlainUnpickler.find_class",
                replace("(module, name) not in PLAIN", "not module"),
            )
        ],
        "tests/contrib/django_q/test_import.py",
        "calls_nothing",
    ),
    Mistake(
        "what was imported and is over is imported again",
        [Change("contrib.django_q.importing:_one", drop("notes.create(**note)"))],
        "tests/contrib/django_q/test_import.py",
        "copied_once",
    ),
    Mistake(
        "the 31st becomes the 29th when the row of a schedule is saved",
        [
            Change(
                "contrib.django_q.models.schedule:reflect",
                replace("known if is_kept else None", "None"),
            )
        ],
        "tests/contrib/django_q/test_schedules.py",
        "31st",
    ),
    Mistake(
        "an error in the shim takes the end of a job with it",
        [Change("contrib.django_q.recording:record", replace("Exception", "MemoryError"))],
        "tests/contrib/django_q/test_keeping.py",
        "keeps_no_job",
    ),
    Mistake(
        "a timeline leaves out an attempt of which nothing is known",
        [
            Change(
                "inspect.timeline:_Life._attempts",
                drop("yield Moment(kind=MomentKind.ATTEMPT_UNKNOWN, number=number)"),
            )
        ],
        "tests/integration/test_timeline.py",
        "not_written_down",
    ),
    Mistake(
        "a page of the admin that only asks does what it asks about",
        [
            Change(
                "admin.dead_letters:DeadLetterAdmin.together",
                replace("'confirmed' in post", "post"),
            )
        ],
        "tests/admin/test_dead_letters.py",
        "ticked",
        database="with_admin",
    ),
    Mistake(
        "an operation in the admin needs no permission",
        [
            Change(
                "admin.base:StoreAdmin._operation_view.view",
                drop("visit.require(operation.permission)"),
            )
        ],
        "tests/admin/test_permissions.py",
        "without_the_permission",
        database="with_admin",
    ),
    Mistake(
        "the dashboard lets everybody in who is signed in",
        [Change("dashboard.views:_refuse", replace("not visit.may(permission)", "False"))],
        "tests/dashboard/test_doing.py",
        "who_may_not",
        database="postgres",
    ),
    Mistake(
        "numbers of the dashboard's charts are written as people write them",
        [Text("templates/stoker/dashboard/chart.html", "{% localize off %}", "{% localize on %}")],
        "tests/dashboard/test_pages.py",
        "no_language",
        database="postgres",
    ),
)
