"""The tasks of a shop. A row makes the failing ones succeed: see ``mend``."""

import logging
import time

from stoker import Cron, Limit, task

from tests.app.models import Account

logger = logging.getLogger(__name__)


class BankUnreachable(Exception):
    """The bank does not answer now, but may later."""


class NoSuchPhoto(Exception):
    """The photo does not exist."""


class OutOfPaper(Exception):
    """There is no paper left."""


@task(queue_name="payments", max_attempts=2, backoff=0.2)
def charge_card(order: int, amount: str) -> str:
    """Charge the card, if the bank answers."""
    logger.info("Charging %s for order %s.", amount, order)
    print("POST https://bank.example/charges")
    if not Account.objects.filter(total=1).exists():
        logger.error("The bank did not answer within 5 seconds.")
        raise BankUnreachable(f"the bank did not answer: order {order} over {amount} is not paid")
    return f"paid {amount}"


@task(queue_name="mail")
def send_receipt(order: int, to: str = "") -> str:
    return f"sent to {to}"


@task(queue_name="photos", max_attempts=1)
def resize_photo(name: str, width: int = 800) -> dict[str, int]:
    if name.startswith("missing"):
        raise NoSuchPhoto(name)
    return {"width": width, "height": width * 3 // 4}


@task(queue_name="wrapping", max_attempts=1)
def wrap(order: int) -> None:
    raise OutOfPaper(f"no paper for order {order}")


@task(queue_name="photos", limit=Limit(1, "printer"))
def print_label(order: int, seconds: float = 0.0) -> None:
    for page in range(1, 13):
        logger.info("Printing page %s of the labels of order %s.", page, order)
    logger.warning("The printer %s is almost out of paper: " + 20 * "labels, ", "cellar-2")
    time.sleep(seconds)


@task(queue_name="photos")
def engrave(order: int) -> str:
    """Run until ``mend`` was called."""
    while not Account.objects.filter(total=1).exists():
        time.sleep(0.05)
    return f"engraved {order}"


@task(queue_name="reports", schedule=Cron("0 3 * * *", tz="Europe/Berlin", args=["yesterday"]))
def nightly_report(day: str) -> str:
    return f"report of {day}"


@task(queue_name="default")
def pack(order: int, item: str) -> str:
    return item


@task(queue_name="default")
def ship(items: list[str]) -> str:
    return ", ".join(items)


def mend() -> None:
    """Let the bank answer."""
    Account.objects.create(total=1)
