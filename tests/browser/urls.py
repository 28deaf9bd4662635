"""URLs of the shop's site: the dashboard, Django's admin, and static files."""

from django.contrib import admin
from django.contrib.staticfiles.views import serve
from django.http import HttpResponse
from django.urls import path, re_path

from stoker.operations import bulk

from tests.dashboard.urls import urlpatterns as dashboard

bulk.AT_ONCE_SECONDS = 60.0  # a busy machine may need more than a moment for a few targets
urlpatterns = [
    *dashboard,
    path("admin/", admin.site.urls),
    path("favicon.ico", lambda request: HttpResponse(status=204)),
    re_path("^static/(?P<path>.*)$", serve, {"insecure": True}),
]
