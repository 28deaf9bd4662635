"""The mistakes, by the folders in which they are made."""

from . import brokers, cluster, concepts, faces, jobs

MISTAKES = (
    *brokers.MISTAKES,
    *cluster.MISTAKES,
    *concepts.MISTAKES,
    *faces.MISTAKES,
    *jobs.MISTAKES,
)
