"""Explain why a job is not running.

::

    from stoker.why import why

    answer = why(settings, job_id)
    answer.kind, answer.sentence, answer.advice, answer.facts
"""

from stoker.inspect.why.answer import Answer, Kind
from stoker.inspect.why.look import why

__all__ = ["Answer", "Kind", "why"]
