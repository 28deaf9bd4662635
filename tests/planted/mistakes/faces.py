"""Mistakes in the faces: admin, API, dashboard, reporters, inspection."""

from tests.planted.mistake import Change, Mistake, Text
from tests.planted.operations import drop, drop_operand, replace

MISTAKES = (
    Mistake(
        "a bulk operation ignores a filter that it does not know",
        [
            Change(
                "operations.bulk:_checked",
                replace("[name for name in filters if name not in takes]", "[]"),
            )
        ],
        "tests/integration/test_bulk.py",
        "does_not_take",
    ),
    Mistake(
        "nobody is told that the queue is paused",
        [
            Change(
                "inspect.why.ready:answer_ready",
                drop_operand(
                    "_ or _ or _paused(asked) or _ or _ or _",
                    "_paused(asked)",
                ),
            )
        ],
        "tests/integration/test_why.py",
        "job_of_a_paused_queue_answers_paused",
    ),
    Mistake(
        "a reporter is told secrets",
        [Change("reporters.facts:_in_short", replace("name", "''"))],
        "tests/unit/reporters/test_facts.py",
    ),
    Mistake(
        "a reporter is told secrets that REDACT names",
        [
            Change(
                "reporters.facts:arguments_of_failure",
                replace(
                    "shown_call(failure.package, settings_for(failure.backend).redact)",
                    "shown_call(failure.package, (), reveal=True)",
                ),
            )
        ],
        "tests/unit/reporters/test_facts.py",
    ),
    Mistake(
        "an SDK sends secrets in local variables",
        [
            Change(
                "reporters.facts:secrets_hider",
                replace("pattern.sub(HIDDEN, value)", "value"),
            )
        ],
        "tests/unit/reporters/test_facts.py",
        "data_gathered_by_an_sdk",
    ),
    Mistake(
        "arguments after a received one have the names of those before",
        [
            Change(
                "tasks.arguments:_calls_of",
                replace(
                    "(RECEIVED, *_) if package.options.receives else _",
                    "tuple(package.args)",
                ),
            )
        ],
        "tests/unit/test_arguments.py",
        "after_a_received_one",
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
        "empty_token_gives_403_if_none_is_configured",
    ),
    Mistake(
        "a permission of the API is not asked for",
        [Change("api.access:permitted", replace("user.has_perm(permission)", "permission"))],
        "tests/api/test_permissions.py",
        "all_other_permissions_give_403 or token_of_user_without_permission_gets_403",
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
        "a repair of the store is not in the audit",
        [Change("operations.store:repair", drop("REPAIR.record(...)"))],
        "tests/integration/test_doctor.py",
        "audit",
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
        "repair_skips_faults_repaired_meanwhile",
    ),
    Mistake(
        "unsigned data is unpickled",
        [
            Change(
                "contrib.django_q.importing:_PlainUnpickler.find_class",
                replace("(module, name) not in PLAIN", "not module"),
            )
        ],
        "tests/contrib/django_q/test_import.py",
        "unsigned_pickle_calls_no_function",
    ),
    Mistake(
        "imported jobs that have ended are imported again",
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
        "failing_task_row_does_not_fail_the_job",
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
        "attempt_without_row_is_shown_as_unknown",
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
        "all_other_permissions_give_403",
        database="with_admin",
    ),
    Mistake(
        "the dashboard lets everybody in who is signed in",
        [Change("dashboard.views:require", replace("not visit.may(permission)", "False"))],
        "tests/dashboard/test_doing.py",
        "page_needs_its_permission",
        database="postgres",
    ),
    Mistake(
        "numbers of the dashboard's charts are written as people write them",
        [Text("templates/stoker/dashboard/chart.html", "{% localize off %}", "{% localize on %}")],
        "tests/dashboard/test_pages.py",
        "numbers_in_svg_are_not_localised",
        database="postgres",
    ),
    Mistake(
        "the dashboard goes back to a page that is not its own",
        [
            Change(
                "dashboard.views:_way_back",
                drop_operand(
                    "_ or _ or match.url_name not in PAGES", "match.url_name not in PAGES"
                ),
            )
        ],
        "tests/dashboard/test_doing.py",
        "foreign_back_url_leads_to_the_start_page",
        database="postgres",
    ),
    Mistake(
        "an Idempotency-Key is shared by all users",
        [
            Change(
                "api.views.jobs:enqueue_job",
                replace("f'{request.auth.pk}:{idempotency_key}'", "idempotency_key"),
            )
        ],
        "tests/api/test_jobs.py",
        "same_idempotency_key_of_same_user_returns_the_first_job",
        database="postgres",
    ),
    Mistake(
        "a duplicate is reported as created",
        [
            Change(
                "api.views.jobs:enqueue_job", replace("200 if result.was_duplicate else 201", "201")
            )
        ],
        "tests/api/test_jobs.py",
        "same_unique_key_returns_the_first_job",
        database="postgres",
    ),
    Mistake(
        "the API enqueues arguments of a wrong type",
        [
            Change(
                "api.views.jobs:_checked",
                replace("adapter.validate_json(json.dumps(value), strict=True)", "value"),
            )
        ],
        "tests/api/test_jobs.py",
        "wrong_arguments_give_422_with_an_explanation",
        database="postgres",
    ),
    Mistake(
        "a request of any size is read",
        [Change("api.access:_refuse_larger", replace("length > most", "False"))],
        "tests/api/test_problems.py",
        "too_large_request_gives_413",
        database="postgres",
    ),
    Mistake(
        "answers of the API are cached",
        [Change("api.access:enclosed", drop("response.headers['Cache-Control'] = 'no-store'"))],
        "tests/api/test_problems.py",
        "responses_are_not_cached",
        database="postgres",
    ),
    Mistake(
        "a form is taken for JSON",
        [
            Change(
                "api.access:refuse_unreadable",
                replace("int(length) and request.content_type != 'application/json'", "False"),
            )
        ],
        "tests/api/test_problems.py",
        "other_content_types_give_415",
        database="postgres",
    ),
    Mistake(
        "why does not see an unreadable package",
        [
            Change(
                "inspect.why.ready:answer_ready",
                drop_operand("_unreadable(asked) or _ or _ or _ or _ or _", "_unreadable(asked)"),
            )
        ],
        "tests/integration/test_why.py",
        "unreadable_package_answers_unreadable",
    ),
    Mistake(
        "why does not see that no cluster serves the queue",
        [
            Change(
                "inspect.why.ready:answer_ready",
                drop_operand("_ or _ or _ or _not_served(asked) or _ or _", "_not_served(asked)"),
            )
        ],
        "tests/integration/test_why.py",
        "overdue_job_answers_like_a_ready_one",
    ),
    Mistake(
        "the list of jobs ignores the queue",
        [
            Change(
                "inspect.jobs:JobSearch._condition",
                drop("if wanted.queue and model is not Ready:\n    ..."),
            )
        ],
        "tests/admin/test_jobs.py",
        "search_finds_jobs_by_id_task_error_and_queue",
        database="with_admin",
    ),
    Mistake(
        "the list of jobs ignores the task",
        [
            Change(
                "inspect.jobs:JobSearch._condition",
                drop("if wanted.task and model is Job:\n    ..."),
            )
        ],
        "tests/admin/test_jobs.py",
        "search_finds_jobs_by_id_task_error_and_queue",
        database="with_admin",
    ),
    Mistake(
        "a task's name is not escaped on the dashboard",
        [
            Change(
                "templatetags.stoker_dashboard:short_task",
                replace(
                    "format_html('<span class=\"module\">{}.<wbr></span><b>{}</b>', module, name)",
                    "SafeString(f'<span class=\"module\">{module}.<wbr></span><b>{name}</b>')",
                ),
            )
        ],
        "tests/dashboard/test_marks.py",
        "task_names_are_escaped",
        database="postgres",
    ),
    Mistake(
        "a task's name without a module is not escaped",
        [
            Change(
                "templatetags.stoker_dashboard:short_task",
                replace("format_html('{}', name)", "SafeString(name)"),
            )
        ],
        "tests/dashboard/test_marks.py",
        "task_names_are_escaped",
        database="postgres",
    ),
    Mistake(
        "text between backticks is not escaped on the dashboard",
        [
            Change(
                "templatetags.stoker_dashboard:_code",
                replace("format_html(...)", "SafeString(f'<code>{text}</code>')"),
            )
        ],
        "tests/dashboard/test_marks.py",
        "text_around_and_between_backticks_is_escaped",
        database="postgres",
    ),
    Mistake(
        "the dashboard goes back to another site",
        [
            Change(
                "dashboard.views:_way_back",
                replace(
                    "resolve(f'/{path.removeprefix(prefix)}')",
                    "resolve('/' + path.split('/', 3)[-1])",
                ),
            )
        ],
        "tests/dashboard/test_doing.py",
        "redirect_to_another_site_is_refused_at_the_root",
        database="postgres",
    ),
    Mistake(
        "the token of an inactive user is accepted",
        [
            Change(
                "api.access:TokenUser.__call__",
                drop_operand("_ or _ or not user.is_active", "not user.is_active"),
            )
        ],
        "tests/api/test_permissions.py",
        "token_of_an_inactive_user_gets_401",
        database="postgres",
    ),
    Mistake(
        "the session of an inactive user is accepted",
        [
            Change(
                "api.access:SessionUser.__call__",
                drop_operand("_ or _ or not user.is_active", "not user.is_active"),
            )
        ],
        "tests/api/test_permissions.py",
        "session_of_an_inactive_user_gets_401_whatever_the_backend_allows",
        database="postgres",
    ),
)
