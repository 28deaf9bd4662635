"""Permissions of the admin's pages: the same as those of the API, and no page without one."""

import subprocess
import sys
import uuid
from collections.abc import Callable

import pytest
from django.contrib.admin import site
from django.test import Client
from django.urls import get_resolver

from stoker import Cron, schedules
from stoker.models import Cluster, DeadLetter, Job, PausedQueue, Ready, Schedule

from tests.admin.conftest import Visitor
from tests.app import tasks

NAMES = {
    "job_changelist": "stoker.view_job",
    "job_change": "stoker.view_job",
    "job_why": "stoker.view_job",
    "job_cancel": "stoker.cancel_job",
    "job_again": "stoker.add_job",
    "job_run": "stoker.change_job",
    "job_hold": "stoker.change_job",
    "job_together": "stoker.cancel_job",
    "deadletter_changelist": "stoker.view_deadletter",
    "deadletter_change": "stoker.view_deadletter",
    "deadletter_faults": "stoker.view_deadletter",
    "deadletter_requeue": "stoker.requeue_deadletter",
    "deadletter_undo": "stoker.requeue_deadletter",
    "deadletter_edit": "stoker.requeue_deadletter",
    "deadletter_discard": "stoker.discard_deadletter",
    "deadletter_together": "stoker.discard_deadletter",
    "pausedqueue_changelist": "stoker.view_job",
    "pausedqueue_change": "stoker.view_job",
    "pausedqueue_pause": "stoker.pause_queue",
    "pausedqueue_resume": "stoker.pause_queue",
    "pausedqueue_clear": "stoker.clear_queue",
    "cluster_changelist": "stoker.view_cluster",
    "cluster_change": "stoker.view_cluster",
    "cluster_quiet": "stoker.quiet_cluster",
    "cluster_resume": "stoker.quiet_cluster",
    "cluster_stop": "stoker.stop_cluster",
    "schedule_changelist": "stoker.view_schedule",
    "schedule_change": "stoker.view_schedule",
    "schedule_add": "stoker.add_schedule",
    "schedule_preview": "stoker.add_schedule",
    "schedule_edit": "stoker.change_schedule",
    "schedule_run": "stoker.run_schedule",
    "schedule_pause": "stoker.pause_schedule",
    "schedule_resume": "stoker.pause_schedule",
    "schedule_delete": "stoker.delete_schedule",
}
"""Page -> permission that it needs."""
SHOWN = {
    "stoker.requeue_deadletter": "stoker.view_deadletter",
    "stoker.change_schedule": "stoker.view_job",
}
"""Permission of a form with arguments -> the permission to see these, which it needs, too."""
VERBS = {"job_together": "cancel", "deadletter_together": "discard"}


def path_of(name: str) -> str:
    model, _, page = name.partition("_")
    if page == "changelist":
        return f"{model}/"
    if page in ("together", "faults", "add", "preview"):
        return f"{model}/{page}/"
    thing = {"schedule": "nightly", "pausedqueue": "default"}.get(model, str(uuid.uuid4()))
    return f"{model}/{thing}/{page}/"


def status_of(visitor: Visitor, name: str) -> int:
    fields = {"verb": VERBS.get(name, ""), "ids": str(uuid.uuid4())}
    return visitor.client.post(f"/admin/stoker/{path_of(name)}", fields).status_code


def test_every_page_is_in_the_table() -> None:
    names = {
        str(name).removeprefix("stoker_")
        for name in get_resolver("tests.admin.urls").namespace_dict["admin"][1].reverse_dict
        if str(name).startswith("stoker_") and not str(name).startswith("stoker_django_q_")
    }
    assert names == set(NAMES)


def test_all_other_permissions_give_403(who_may: Callable[..., Visitor]) -> None:
    tasks.nothing.enqueue()
    schedules.create("nightly", tasks.nothing, Cron("0 3 * * *"))
    for permission in sorted(set(NAMES.values())):
        others = set(NAMES.values()) - {permission}
        if permission == "stoker.add_schedule":
            others -= {"stoker.change_schedule"}  # with either one may use the preview
        visitor = who_may(*others)
        for name in (name for name, needed in NAMES.items() if needed == permission):
            assert status_of(visitor, name) == 403, name
    assert Ready.objects.count() == 1
    assert Schedule.objects.count() == 1


def test_the_permission_gives_access(who_may: Callable[..., Visitor]) -> None:
    for permission in sorted(set(NAMES.values())):
        visitor = who_may(permission, SHOWN.get(permission, permission))
        for name in (name for name, needed in NAMES.items() if needed == permission):
            assert status_of(visitor, name) in (200, 302, 404), name


def test_forms_with_arguments_need_the_permission_to_see_them(
    who_may: Callable[..., Visitor],
) -> None:
    schedules.create("nightly", tasks.nothing, Cron("0 3 * * *"))
    for name in ("deadletter_edit", "schedule_edit"):
        assert status_of(who_may(NAMES[name]), name) == 403
    viewer = who_may("stoker.view_schedule", "stoker.change_schedule")
    assert "/edit/" not in viewer.get("schedule/nightly/change/")


def test_anonymous_user_is_redirected_to_login(transactional_db: None) -> None:
    for name in NAMES:
        response = Client().post(f"/admin/stoker/{path_of(name)}")
        assert response.status_code == 302, name
        assert "/admin/login/" in response.headers["Location"]


def test_buttons_are_shown_only_with_permission(who_may: Callable[..., Visitor]) -> None:
    result = tasks.nothing.enqueue()
    viewer = who_may("stoker.view_job")
    page = viewer.get(f"job/{result.id}/change/")
    assert "/cancel/" not in page
    assert "/pause/" not in viewer.get("pausedqueue/")
    assert 'type="checkbox"' not in viewer.get("job/")
    assert "/cancel/" in who_may("stoker.view_job", "stoker.cancel_job").get(
        f"job/{result.id}/change/"
    )


def test_index_lists_only_models_with_permission(who_may: Callable[..., Visitor]) -> None:
    page = who_may("stoker.view_job").client.get("/admin/").content.decode()
    assert "Jobs" in page
    assert "Queues" in page
    assert "Dead letters" not in page


def test_nul_characters_give_404(anna: Visitor) -> None:
    anna.get("job/", status=404, task="a\x00b")
    anna.get("schedule/a%00b/change/", status=404)


def test_post_without_csrf_token_gives_403(anna: Visitor) -> None:
    result = tasks.nothing.enqueue()
    client = Client(enforce_csrf_checks=True)
    client.force_login(anna.user)
    assert client.post(f"/admin/stoker/job/{result.id}/cancel/").status_code == 403
    assert Ready.objects.exists()


@pytest.mark.parametrize("model", [Job, DeadLetter, PausedQueue, Cluster, Schedule])
def test_rows_cannot_be_changed_or_deleted_directly(model: type, anna: Visitor) -> None:
    request = anna.client.get("/admin/").wsgi_request
    ours = site._registry[model]
    assert not ours.has_change_permission(request)
    assert not ours.has_delete_permission(request)
    assert ours.has_view_permission(request)


def test_admin_module_is_not_loaded_without_django_admin() -> None:
    code = "import django, sys; django.setup(); sys.exit('stoker.admin' in sys.modules)"
    environment = {"DJANGO_SETTINGS_MODULE": "tests.settings.sqlite", "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
