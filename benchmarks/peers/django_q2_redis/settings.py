"""Django settings of the peer: its results go to PostgreSQL."""

import os
from typing import Any
from urllib.parse import urlsplit

SECRET_KEY = "for benchmarks only"  # noqa: S105 - it keeps nothing secret
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_q"]

_place = urlsplit(os.environ["PEER_POSTGRES_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": _place.hostname,
        "PORT": _place.port,
        "USER": _place.username,
        "NAME": _place.path.strip("/"),
        "CONN_MAX_AGE": None,
    }
}

Q_CLUSTER: dict[str, Any] = {
    "name": "bench",
    "workers": 2,
    "redis": os.environ["PEER_REDIS_URL"],
    "log_level": "ERROR",
    "save_limit": 0,
    "timeout": 60,
    "retry": 90,
}
if os.environ["PEER_VARIANT"] != "default":
    Q_CLUSTER |= {"queue_limit": 500, "recycle": 100_000, "scheduler": False, "guard_cycle": 1}
