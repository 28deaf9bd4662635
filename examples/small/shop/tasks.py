"""The jobs of the shop."""

import os
import signal

from stoker import job, task

from .models import Charge


@task(atomic=True, max_attempts=3)
def charge(order_id: int) -> None:
    """Charge an order: the row and the end of the job are one commit."""
    Charge.objects.create(order_id=order_id)
    if job.attempt == 1:  # the power fails after the row was written
        os.kill(os.getpid(), signal.SIGKILL)
