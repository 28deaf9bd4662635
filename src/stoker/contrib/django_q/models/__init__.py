"""Django Q's models: ``Task`` with ``Success`` and ``Failure``, ``Schedule``, ``OrmQ``."""

from .imported import Imported
from .ormq import OrmQ
from .schedule import Schedule
from .task import Failure, Success, Task

__all__ = ["Failure", "Imported", "OrmQ", "Schedule", "Success", "Task"]
