"""Django settings of the benchmarks: the database that is measured, and a backend by default.

- STOKER_BENCH_DATABASE: the entry of DATABASES, as JSON;
- STOKER_BENCH_OPTIONS: changes of OPTIONS, as JSON.
"""

import importlib.util
import json
import os

SECRET_KEY = "for benchmarks only"  # noqa: S105 - it keeps nothing secret
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["stoker"]
# On Django 5.2 the backport provides django.tasks.
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.insert(0, "django_tasks")

DATABASES = {"default": json.loads(os.environ["STOKER_BENCH_DATABASE"])}

TASKS = {
    "default": {
        "BACKEND": "stoker.backend.StokerBackend",
        "OPTIONS": {"WORKERS": 2, **json.loads(os.environ.get("STOKER_BENCH_OPTIONS", "{}"))},
    },
}
