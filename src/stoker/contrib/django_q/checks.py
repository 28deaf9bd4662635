"""``manage.py check``: what there is to say about ``Q_CLUSTER``.

================ ===============================================================================
Id               What it says
================ ===============================================================================
django_q.E001    A key of ``Q_CLUSTER`` is unknown, has a wrong value, or names a broker that there
                 is not.
django_q.E002    Django Q itself stands before this app in ``INSTALLED_APPS``.
django_q.E003    A migration speaks of Django Q's, and no app has its label.
django_q.W001    A key of ``Q_CLUSTER`` has no effect any more, or another one.
================ ===============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own names

from .translation import problems

HISTORY = "stoker.contrib.django_q.history"
LABEL = re.compile(r"""["']django_q(["']|\.)""")


def check_q_cluster(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """What there is to say about the settings of a project that comes from Django Q."""
    found: list[CheckMessage] = []
    names = [config.name for config in apps.get_app_configs()]
    if "django_q" in names and names.index("django_q") < names.index("stoker.contrib.django_q"):
        found.append(
            Error(
                "'django_q' stands before 'stoker.contrib.django_q' in INSTALLED_APPS, so qcluster "
                "is Django Q's.",
                hint=f"Replace 'django_q' by {HISTORY!r}, which has migrations of the same names, "
                "or put it after 'stoker.contrib.django_q'. Its tables stay, and `manage.py stoker "
                "import_django_q` reads them.",
                id="django_q.E002",
            )
        )
    if "django_q" not in apps.app_configs:
        found += [
            Error(
                f"The migration {path} speaks of the app 'django_q', which is not in "
                "INSTALLED_APPS.",
                hint=f"Add {HISTORY!r} there: it has migrations of the same names.",
                id="django_q.E003",
            )
            for path in _migrations_of_before()
        ]
    for problem in problems(getattr(settings, "Q_CLUSTER", {})):
        if problem.is_error:
            found.append(Error(problem.sentence, hint=problem.advice, id="django_q.E001"))
        else:
            found.append(Warning(problem.sentence, hint=problem.advice, id="django_q.W001"))
    return found


def _migrations_of_before() -> Iterator[Path]:
    """The files of the project's migrations that name Django Q's app. They are read, not imported:
    what they import may be gone."""
    modules: dict[str, str | None] = getattr(settings, "MIGRATION_MODULES", {})
    for config in apps.get_app_configs():
        module = modules.get(config.label, f"{config.name}.migrations")
        if module is None or config.name.startswith("stoker."):
            continue
        try:
            spec = find_spec(module)
        except ImportError:
            continue
        for folder in (spec.submodule_search_locations if spec else None) or ():
            for path in sorted(Path(folder).glob("*.py")):
                if LABEL.search(path.read_text(errors="replace")):
                    yield path
