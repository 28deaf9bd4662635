"""The page, the button, the report, and the progress of each job."""

from django.urls import include, path

from . import views

urlpatterns = [
    path("", views.page),
    path("reports/", views.start, name="start"),
    path("reports/<uuid:job_id>", views.report, name="report"),
    path("progress/", include("stoker.progress.urls")),
]
