"""The addresses of a project that is nothing but the dashboard."""

from django.urls import include, path

urlpatterns = [path("", include("stoker.dashboard.urls"))]
