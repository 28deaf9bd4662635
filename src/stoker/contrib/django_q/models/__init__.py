"""Django Q's models: ``Task`` with ``Success`` and ``Failure``, ``Schedule``, ``OrmQ``."""

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if not apps.is_installed("stoker.contrib.django_q"):
    # Otherwise Django would register them as models of the app "stoker".
    raise ImproperlyConfigured(
        "The models of 'stoker.contrib.django_q' need this app in INSTALLED_APPS."
    )

from .imported import Imported
from .ormq import OrmQ
from .schedule import Schedule
from .task import Failure, Success, Task

__all__ = ["Failure", "Imported", "OrmQ", "Schedule", "Success", "Task"]
