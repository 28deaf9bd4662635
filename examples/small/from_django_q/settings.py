"""The settings of a project that used Django Q, with the two changed lines."""

from examples.small.settings import *  # noqa: F403 - what all small projects have
from examples.small.settings import INSTALLED_APPS

del TASKS  # noqa: F821 - Q_CLUSTER says all that is needed
INSTALLED_APPS += [
    "stoker.contrib.django_q",  # was: "django_q"
    "stoker.contrib.django_q.history",  # the old tables, as Django Q's migrations created them
]
Q_CLUSTER = {"name": "shop", "orm": "default", "workers": 2, "timeout": 60, "retry": 120}
