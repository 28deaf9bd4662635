"""``path("stoker/", include("stoker.dashboard.urls"))``: all of the dashboard."""

from __future__ import annotations

from django.urls import path
from django.utils.module_loading import autodiscover_modules

from stoker.dashboard.pages.live import live

from . import assets
from .pages import clusters, dead_letters, job, jobs, overview, queues, schedules, tasks, workflows

# So that a job can be sent again, and its task's options be shown, by a process that only serves.
autodiscover_modules("tasks")

app_name = "stoker-dashboard"
urlpatterns = [
    path("", overview.show, name="overview"),
    path("live", live, name="live"),
    path("files/<slug:version>/<str:name>", assets.show, name="asset"),
    path("jobs/", jobs.show, name="jobs"),
    path("jobs/cancel", job.cancel, name="cancel-job"),
    path("jobs/again", job.rerun, name="run-again"),
    path("jobs/<uuid:job_id>", job.show, name="job"),
    path("queues/", queues.show, name="queues"),
    path("queues/one", queues.show_one, name="queue"),
    path("queues/pause", queues.pause, name="pause-queue"),
    path("queues/resume", queues.resume, name="resume-queue"),
    path("queues/clear", queues.clear, name="clear-queue"),
    path("tasks/", tasks.show, name="tasks"),
    path("tasks/one", tasks.show_one, name="task"),
    path("dead-letters/", dead_letters.show, name="dead-letters"),
    path("dead-letters/requeue", dead_letters.requeue, name="requeue"),
    path("dead-letters/undo-requeue", dead_letters.undo, name="undo-requeue"),
    path("dead-letters/discard", dead_letters.discard, name="discard"),
    path("dead-letters/<uuid:letter_id>", dead_letters.show_one, name="dead-letter"),
    path("schedules/", schedules.show, name="schedules"),
    path("schedules/run", schedules.run_now, name="run-schedule"),
    path("schedules/pause", schedules.pause, name="pause-schedule"),
    path("schedules/resume", schedules.resume, name="resume-schedule"),
    path("schedules/<uuid:schedule_id>", schedules.show_one, name="schedule"),
    path("workflows/", workflows.show, name="workflows"),
    path("workflows/cancel", workflows.cancel, name="cancel-workflow"),
    path("workflows/retry", workflows.retry, name="retry-workflow"),
    path("workflows/<uuid:workflow_id>", workflows.show_one, name="workflow"),
    path("clusters/", clusters.show, name="clusters"),
    path("clusters/quiet", clusters.quiet, name="quiet-cluster"),
    path("clusters/resume", clusters.resume, name="resume-cluster"),
    path("clusters/stop", clusters.stop, name="stop-cluster"),
]
