"""The project's app. In a run that checks the checker, it plants a mistake when Django starts."""

from django.apps import AppConfig
from django.conf import settings


class CrashConfig(AppConfig):
    """The app with the tasks. `settings.CRASH["mistake"]` may name a mistake to plant."""

    name = "tests.crash"
    label = "crash"

    def ready(self) -> None:
        """Plant the mistake."""
        if settings.CRASH.get("mistake"):
            from tests.crash.mistakes import MISTAKES

            MISTAKES[settings.CRASH["mistake"]].plant()
