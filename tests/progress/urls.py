"""URLs of a project whose pages show the progress of jobs."""

from django.urls import include, path

urlpatterns = [path("progress/", include("stoker.progress.urls"))]
