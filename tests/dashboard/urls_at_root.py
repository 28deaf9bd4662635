"""URLs of a project that consists of the dashboard."""

from django.urls import include, path

urlpatterns = [path("", include("stoker.dashboard.urls"))]
