"""The URLs of the dashboard: ``path("stoker/", include("stoker.dashboard.urls"))``.

URLs of pages and operations end with a slash. Those of the HTTP API do not, so both can be mounted
under the same prefix.
"""

from __future__ import annotations

from django.urls import path

from stoker.dashboard.pages.live import live
from stoker.dashboard.pages.palette import palette
from stoker.operations.bulk import OPERATIONS as BULK
from stoker.operations.dead_letters import PURGE
from stoker.operations.jobs import CANCEL
from stoker.operations.schedules import ADD, CHANGE
from stoker.operations.store import REPAIR
from stoker.operations.table import OPERATIONS
from stoker.operations.waiting_jobs import OPERATIONS as ON_WAITING_JOBS
from stoker.tasks.registry import import_tasks_or_log

from . import assets
from .pages import (
    audit,
    bulk,
    clusters,
    dead_letters,
    edit,
    guards,
    job,
    jobs,
    overview,
    queues,
    schedules,
    tasks,
    workflows,
)
from .views import perform

# A process that only serves must know the tasks to requeue their jobs and show their options.
import_tasks_or_log()

app_name = "stoker-dashboard"
FOLDERS = {
    "job": "jobs",
    "queue": "queues",
    "guard": "guards",
    "letter": "dead-letters",
    "schedule": "schedules",
    "workflow": "workflows",
    "step": "workflows/steps",
    "cluster": "clusters",
    "bulk": "bulk",
}
ON_MANY = {
    **{one.name: jobs.perform_on_jobs for one in (*ON_WAITING_JOBS, CANCEL)},
    "requeue-letter": dead_letters.perform_on_letters,
    "discard-letter": dead_letters.perform_on_letters,
    "undo-letter": bulk.perform_or_undo,
    "retry-workflow": bulk.perform_or_undo,
    **{one.name: bulk.control for one in BULK},
}
"""Operation name -> function, for operations whose form may name several targets."""

urlpatterns = [
    path("", overview.show, name="overview"),
    path("live/", live, name="live"),
    path("palette/", palette, name="palette"),
    path("files/<slug:version>/<str:name>", assets.show, name="asset"),
    path("jobs/", jobs.show, name="jobs"),
    path("jobs/<uuid:job_id>/", job.show, name="job"),
    path("jobs/<uuid:job_id>/edit/", edit.edit_job, name="edit-one-job"),
    path("queues/", queues.show, name="queues"),
    path("queues/one/", queues.show_one, name="queue"),
    path("guards/", guards.show, name="guards"),
    path("guards/<uuid:guard_id>/", guards.show_one, name="guard"),
    path("tasks/", tasks.show, name="tasks"),
    path("tasks/one/", tasks.show_one, name="task"),
    path("dead-letters/", dead_letters.show, name="dead-letters"),
    path("dead-letters/<uuid:letter_id>/", dead_letters.show_one, name="dead-letter"),
    path("dead-letters/<uuid:letter_id>/edit/", edit.edit_letter, name="edit-letter"),
    path("schedules/", schedules.show, name="schedules"),
    path("schedules/add/", schedules.add, name="add-schedule"),
    path("schedules/<uuid:schedule_id>/edit/", schedules.change, name="change-schedule"),
    path("schedules/<uuid:schedule_id>/", schedules.show_one, name="schedule"),
    path("workflows/", workflows.show, name="workflows"),
    path("workflows/<uuid:workflow_id>/", workflows.show_one, name="workflow"),
    path("clusters/", clusters.show, name="clusters"),
    path("audit/", audit.show, name="audit"),
    path("audit/export/", audit.export, name="export-audit"),
    path("bulk/", bulk.show, name="bulk-operations"),
    path("bulk/new/", bulk.show_new, name="new-bulk"),
    path("bulk/start/", bulk.start, name="start-bulk"),
    path("bulk/<uuid:bulk_id>/", bulk.show_one, name="bulk"),
    *(
        path(f"{FOLDERS[one.target]}/{one.word}/", perform(one, ON_MANY.get(name)), name=name)
        for name, one in OPERATIONS.items()
        if one not in (ADD, CHANGE, PURGE, REPAIR)  # two have forms of their own, two none
    ),
]
