"""The steps of the onboarding. A day takes half a second here."""

from stoker import Snooze, job, task

DAY_SECONDS = 0.5


@task(max_attempts=5)
def onboard(customer: str) -> list[str]:
    """Send three mails, a day apart. The checkpoint records which mails were sent."""
    sent: list[str] = job.last_checkpoint or []
    mails = ("welcome", "first steps", "how is it going?")
    if len(sent) < len(mails):
        sent.append(mails[len(sent)])
        job.checkpoint(sent)
    if len(sent) < len(mails):
        raise Snooze(DAY_SECONDS, f"{len(sent)} mails are sent to {customer}")
    return sent
