"""The settings of both hosts: one database and one Redis, at the address that the host knows."""

import os

import django

SECRET_KEY = "only for trying things out on your own machine"

INSTALLED_APPS = ["django.contrib.contenttypes", "orders", "stoker"]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]  # what Django 6 has itself

SERVER = os.environ.get("TWO_HOSTS_SERVER", "127.0.0.1")

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": SERVER,
        "PORT": os.environ.get("TWO_HOSTS_DATABASE_PORT", "5432"),
        "USER": "postgres",
        "NAME": "postgres",
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

TASKS = {
    "default": {
        "BACKEND": "stoker.backend.StokerBackend",
        "OPTIONS": {
            "BROKER": f"redis://{SERVER}:{os.environ.get('TWO_HOSTS_REDIS_PORT', '6379')}/0",
            "WORKERS": 2,
            # Short, so that a take-over does not take a minute. Use longer ones in production.
            "LEASE_SECONDS": 6,
            "DATABASE_SECONDS": 2,
            "HEARTBEAT_SECONDS": 1,
            "UPKEEP_SECONDS": 1,
            "POLL_SECONDS": 0.2,
            "SHUTDOWN_SECONDS": 5,
        },
    },
}
