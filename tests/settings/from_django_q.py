"""A project that comes from Django Q: it has Q_CLUSTER and no TASKS."""

import json
import os
from importlib import import_module
from typing import Any

_base = import_module(os.environ.get("STOKER_TEST_BASE_SETTINGS", "tests.settings.sqlite"))
globals().update({name: value for name, value in vars(_base).items() if name.isupper()})
del globals()["TASKS"]

Q_CLUSTER: dict[str, Any] = {
    "name": "stoker",
    "orm": "default",
    "workers": 2,
    "timeout": 30,
    "retry": 1,
    "ALT_CLUSTERS": {"slow": {"workers": 1}},
    **json.loads(os.environ.get("STOKER_TEST_Q_CLUSTER", "{}")),
}
