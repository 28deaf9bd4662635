"""URLs that ``{% job_progress %}`` fetches. Include them with ``path("progress/",
include("stoker.progress.urls"))``."""

from __future__ import annotations

from django.urls import path

from .views import APP, show

app_name = APP
urlpatterns = [path("<str:token>", show, name="show")]
