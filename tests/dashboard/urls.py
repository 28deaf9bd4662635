"""URLs of a project with the dashboard."""

from django.contrib.auth.views import LoginView
from django.urls import include, path

urlpatterns = [
    path("stoker/", include("stoker.dashboard.urls")),
    path("accounts/login/", LoginView.as_view(template_name="login.html"), name="login"),
    path("accounts/jobs/", LoginView.as_view(template_name="login.html"), name="jobs"),
]
