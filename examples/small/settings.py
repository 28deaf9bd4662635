"""The settings of the small projects."""

import os

import django

SECRET_KEY = "only for trying things out on your own machine"
INSTALLED_APPS = ["django.contrib.contenttypes", os.environ["SMALL_APP"], "stoker"]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]  # what Django 6 has itself
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SMALL_DATABASE"]},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
TASKS = {
    "default": {
        "BACKEND": "stoker.backend.StokerBackend",
        "QUEUES": [],  # any name is accepted
        "OPTIONS": {"WORKERS": 2},
    },
}
