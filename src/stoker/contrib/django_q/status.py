"""``django_q.status``."""

from .clusters import Stat

__all__ = ["Stat"]
