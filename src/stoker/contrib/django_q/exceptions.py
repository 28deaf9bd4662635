"""``django_q.exceptions``: the error of a time-out under Django Q's name."""

from stoker.exceptions import TaskTimeout as TimeoutException

__all__ = ["TimeoutException"]
