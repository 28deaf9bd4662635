"""``path("progress/", include("stoker.progress.urls"))``: what ``{% job_progress %}`` fetches."""

from __future__ import annotations

from django.urls import path

from .views import APP, show

app_name = APP
urlpatterns = [path("<str:token>", show, name="show")]
