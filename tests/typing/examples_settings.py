"""All apps of the examples, for the type checkers."""

from tests.settings.sqlite import *  # noqa: F403 - settings are built on top of one another
from tests.settings.sqlite import INSTALLED_APPS

INSTALLED_APPS += [
    "stoker.contrib.django_q.history",
    "examples.feeds",
    "examples.small.from_celery",
    "examples.small.from_django_q",
    "examples.small.limits",
    "examples.small.live",
    "examples.small.media",
    "examples.small.onboarding",
    "examples.small.shop",
    "examples.small.tenants",
    "orders",
]
Q_CLUSTER = {"name": "shop", "orm": "default"}
