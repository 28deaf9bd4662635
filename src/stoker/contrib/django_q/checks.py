"""``manage.py check``: what there is to say about ``Q_CLUSTER``.

================ ===============================================================================
Id               What it says
================ ===============================================================================
django_q.E001    A key of ``Q_CLUSTER`` is unknown, has a wrong value, or names a broker that there
                 is not.
django_q.E002    Django Q itself is in ``INSTALLED_APPS``, too.
django_q.W001    A key of ``Q_CLUSTER`` has no effect any more, or another one.
================ ===============================================================================
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own names

from .translation import problems


def check_q_cluster(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """What there is to say about the settings of a project that comes from Django Q."""
    found: list[CheckMessage] = []
    if apps.is_installed("django_q"):
        found.append(
            Error(
                "Both 'django_q' and 'stoker.contrib.django_q' are in INSTALLED_APPS: they have "
                "commands of the same names.",
                hint="Remove 'django_q'. Its tables stay, and `manage.py stoker import_django_q` "
                "reads them.",
                id="django_q.E002",
            )
        )
    for problem in problems(getattr(settings, "Q_CLUSTER", {})):
        if problem.is_error:
            found.append(Error(problem.sentence, hint=problem.advice, id="django_q.E001"))
        else:
            found.append(Warning(problem.sentence, hint=problem.advice, id="django_q.W001"))
    return found
