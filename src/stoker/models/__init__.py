"""What is true: one table, one file; what may happen to a row is a method of its query set.

A waiting or running job's state is the narrow table its row is in: ready, deferred or claimed.
The wide ``Job`` row is written once when it is enqueued and once when it is finished.
"""

from .attempt import Attempt
from .claimed import Claimed
from .cluster import Cluster
from .dead_letter import DeadLetter
from .deferred import Deferred
from .job import Job
from .lock import Lock
from .ready import Ready

__all__ = ["Attempt", "Claimed", "Cluster", "DeadLetter", "Deferred", "Job", "Lock", "Ready"]
