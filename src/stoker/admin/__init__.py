"""Jobs, dead letters, schedules, queues and clusters in Django's admin.

Django loads it if ``django.contrib.admin`` is installed. These pages save no rows. They perform the
operations of ``stoker.operations``, with the same permissions as the API.
"""

from .clusters import ClusterAdmin
from .dead_letters import DeadLetterAdmin
from .jobs import JobAdmin
from .queues import QueueAdmin
from .schedules import ScheduleAdmin

__all__ = ["ClusterAdmin", "DeadLetterAdmin", "JobAdmin", "QueueAdmin", "ScheduleAdmin"]
