"""Two tasks: one that waits in the database, for it must have its effect just once; and one that
waits in Redis, and may begin a second time when its host is lost."""

import os
import time

from stoker import task

from .models import Packing, Payment

WORK_SECONDS = 0.5


@task(atomic=True, max_attempts=10)
def charge(order: int) -> str:
    """Take the money. The row and the record that the job is done are one commit."""
    time.sleep(WORK_SECONDS)
    Payment.objects.create(order=order, host=_host())
    return _host()


@task(max_attempts=10)
def pack(order: int) -> str:
    """Pack a parcel."""
    Packing.objects.create(order=order, host=_host())
    time.sleep(WORK_SECONDS)
    return _host()


def _host() -> str:
    return os.environ["TWO_HOSTS_NAME"]
