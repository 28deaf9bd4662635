"""Two tasks. One waits in the database, because it must take effect exactly once. The other waits
in Redis, and may start a second time if its host is lost."""

import os
import time

from stoker import task

from .models import Packing, Payment

WORK_SECONDS = 0.5


@task(atomic=True, max_attempts=10)
def charge(order: int) -> str:
    """Charge an order. The row and the record of the job's end are one commit."""
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
