"""The project's app. In a run that checks the checker, it plants a mistake when Django starts."""

from django.apps import AppConfig
from django.conf import settings


class CrashConfig(AppConfig):
    """Has the tasks; `settings.CRASH["mistake"]` names a mistake, if there is to be one."""

    name = "tests.crash"
    label = "crash"

    def ready(self) -> None:
        """Plant it."""
        if settings.CRASH.get("mistake"):
            from tests.crash.mistakes import MISTAKES

            MISTAKES[settings.CRASH["mistake"]].plant()
