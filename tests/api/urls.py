"""The addresses of a project that has the API."""

from django.urls import include, path

urlpatterns = [path("stoker/", include("stoker.api.urls"))]
