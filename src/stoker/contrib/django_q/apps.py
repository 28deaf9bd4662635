"""The app that stands where ``django_q`` stood in ``INSTALLED_APPS``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig

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

    def ready(self) -> None:
        """Register the checks, and pass on Stoker's signal of new processes."""
        from django.core import checks

        from stoker.signals import post_spawn

        from .checks import check_q_cluster

        checks.register(check_q_cluster)
        post_spawn.connect(_tell_of_process, dispatch_uid="stoker.contrib.django_q")


def _tell_of_process(role: str, number: int, **_: Any) -> None:
    from .signals import post_spawn

    name = f"{role} {number}" if role == "worker" else role
    post_spawn.send_robust(DjangoQConfig, proc_name=name)
