"""The mistakes, such as somebody might make, by the folders they are made in."""

from . import brokers, cluster, concepts, faces, jobs

MISTAKES = (
    *brokers.MISTAKES,
    *cluster.MISTAKES,
    *concepts.MISTAKES,
    *faces.MISTAKES,
    *jobs.MISTAKES,
)
