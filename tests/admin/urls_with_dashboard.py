"""URLs of a project with the admin, the HTTP API and the dashboard."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("stoker/", include("stoker.api.urls")),
    path("stoker/", include("stoker.dashboard.urls")),
]
