"""Django Q's models: ``Task`` with ``Success`` and ``Failure``, ``Schedule``, ``OrmQ``."""

from .ormq import OrmQ
from .schedule import Schedule
from .task import Failure, Success, Task

__all__ = ["Failure", "OrmQ", "Schedule", "Success", "Task"]
