"""URLs of a project with the API."""

from django.urls import include, path

urlpatterns = [path("stoker/", include("stoker.api.urls"))]
