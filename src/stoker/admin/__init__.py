"""Jobs, dead letters, schedules, queues and clusters in Django's admin.

Loaded by Django where ``django.contrib.admin`` is installed, and by nobody else. Nothing is saved
here as a row: whatever is changed, is changed by the verbs that the command line and the API have,
with the same permissions.
"""

from .clusters import ClusterAdmin
from .dead_letters import DeadLetterAdmin
from .jobs import JobAdmin
from .queues import QueueAdmin
from .schedules import ScheduleAdmin

__all__ = ["ClusterAdmin", "DeadLetterAdmin", "JobAdmin", "QueueAdmin", "ScheduleAdmin"]
