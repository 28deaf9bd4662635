"""Settings that a project with the dashboard needs beside its TASKS."""

from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "ROOT_URLCONF": "tests.dashboard.urls",
    "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
    "LOGIN_REDIRECT_URL": "/stoker/",
    "MIDDLEWARE": [
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [Path(__file__).parent / "templates"],
            "APP_DIRS": True,
            "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
        }
    ],
}
