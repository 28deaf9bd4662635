"""The tables: one model per file. Operations on rows are methods of the model's query set.

The state of an unfinished job is the hot table that its row is in: ready, deferred, blocked or
claimed. The wide row in ``Job`` is written twice: when the job is enqueued and when it ends.
"""

from django.apps import apps

from stoker.conf import ADD_THE_APP
from stoker.exceptions import ConfigurationError

if not apps.is_installed("stoker"):  # Django's own error would not say what to do
    raise ConfigurationError(ADD_THE_APP)

from .attempt import Attempt
from .begun import Begun
from .blocked import Blocked
from .bulk_operation import BulkItem, BulkOperation
from .cancellation import Cancellation
from .claimed import Claimed
from .cluster import Cluster
from .dead_letter import DeadLetter
from .deferred import Deferred
from .deploy import Deploy
from .edition import Edition
from .guard_key import GuardKey
from .job import Job
from .lock import LockKey
from .log_chunk import LogChunk
from .metrics import Sample, Tally
from .need import Need
from .note import Note
from .outbox import Outgoing, Relayed
from .paused_queue import PausedQueue
from .ready import Ready
from .requeue import Requeue
from .schedule import Schedule
from .step import Step
from .tick import Tick
from .unique_key import UniqueKey
from .wait import Wait
from .workflow import Workflow

__all__ = [
    "Attempt",
    "Begun",
    "Blocked",
    "BulkItem",
    "BulkOperation",
    "Cancellation",
    "Claimed",
    "Cluster",
    "DeadLetter",
    "Deferred",
    "Deploy",
    "Edition",
    "GuardKey",
    "Job",
    "LockKey",
    "LogChunk",
    "Need",
    "Note",
    "Outgoing",
    "PausedQueue",
    "Ready",
    "Relayed",
    "Requeue",
    "Sample",
    "Schedule",
    "Step",
    "Tally",
    "Tick",
    "UniqueKey",
    "Wait",
    "Workflow",
]
