"""A project with the API at another path."""

from django.urls import include, path

inner = [path("jobs-api/", include("stoker.api.urls"))]
urlpatterns = [path("deep/down/", include((inner, "inner"), namespace="outer"))]
