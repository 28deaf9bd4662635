"""What can be done about one job."""

from __future__ import annotations

from stoker.compat import TaskResultDoesNotExist
from stoker.ids import parse_job_id
from stoker.lifecycle.again import run_again
from stoker.progress import JobState
from stoker.results import fetch

from .store_admin import Outcome
from .visit import Visit


def cancel(visit: Visit, object_id: str, because: str) -> Outcome:
    """Withdraw it where it waits, or have it ended where it runs."""
    reason = f"cancelled by {visit.by}" + (f": {because}" if because else "")
    result = fetch(visit.settings, object_id)
    if not result.cancel(reason[:255]):
        return Outcome(f"The job had ended already: {result.state}.", is_good=False)
    if result.state == JobState.RUNNING:
        return Outcome("The job was told to end. That takes a moment.")
    return Outcome("The job is cancelled.")


def rerun(visit: Visit, object_id: str, because: str) -> Outcome:
    """A new job with the same arguments."""
    job_id = parse_job_id(object_id)
    if job_id is None:
        raise TaskResultDoesNotExist(f"{object_id!r} is no id of a job.")
    again = run_again(visit.settings, job_id)
    to = visit.at("job_change", again.result.id) if again.result is not None else ""
    if again.because:
        return Outcome(again.because, False, to)
    return Outcome("Enqueued again with the same arguments: this is the new job.", to=to)
