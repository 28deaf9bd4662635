"""The app that stands where ``django_q`` stood in ``INSTALLED_APPS``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured

from . import conf


class DjangoQConfig(AppConfig):
    name = "stoker.contrib.django_q"
    label = "stoker_django_q"
    default_auto_field = "django.db.models.AutoField"
    stoker_subcommands = ("stoker.contrib.django_q.import_command.ImportDjangoQ",)
    """What it adds to ``manage.py stoker``."""

    def __init__(self, app_name: str, app_module: Any) -> None:
        super().__init__(app_name, app_module)
        self.verbose_name = conf.Conf.LABEL
        conf.install()  # here, before any module with tasks is imported

    def import_models(self) -> None:
        """Raises ImproperlyConfigured where Stoker itself is missing, which the models need."""
        if not apps.is_installed("stoker"):
            raise ImproperlyConfigured(
                "'stoker.contrib.django_q' is in INSTALLED_APPS, but 'stoker' is not: add it "
                "there, and run manage.py migrate."
            )
        super().import_models()

    def ready(self) -> None:
        """Register the checks, and pass on Stoker's signal of new processes."""
        from django.core import checks

        from stoker.signals import post_spawn

        from .checks import check_q_cluster

        checks.register(check_q_cluster)
        post_spawn.connect(_tell_of_process, dispatch_uid="stoker.contrib.django_q")


def _tell_of_process(role: str, number: int, **_: Any) -> None:
    from .signals import SENDER, post_spawn

    name = f"{role} {number}" if role == "worker" else role
    post_spawn.send_robust(SENDER, proc_name=name)
