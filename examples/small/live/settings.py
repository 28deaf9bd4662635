"""The settings of the small projects, and those of a site."""

from examples.small.settings import *  # noqa: F403 - what all small projects have
from examples.small.settings import INSTALLED_APPS

DEBUG = True  # the development server then serves htmx
ROOT_URLCONF = "examples.small.live.urls"
INSTALLED_APPS += ["django.contrib.staticfiles"]
STATIC_URL = "static/"
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "examples.small.live.views.add_policy",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    }
]
