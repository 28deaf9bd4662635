from django.contrib import admin
from django.urls import include, path

from . import views

urlpatterns = [
    path("", views.feeds, name="feeds"),
    path("stoker/", include("stoker.dashboard.urls")),
    path("admin/", admin.site.urls),
]
