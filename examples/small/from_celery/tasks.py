"""The tasks as they are now: ``before.py`` has them as they were."""

from stoker import Cron, Retry, TaskTimeout, exponential, job, task

from .models import Payment


@task(queue_name="prices")
def price_of(item: str) -> int:
    """Return a price."""
    return {"kettle": 30, "teapot": 20}[item]


@task
def add_up(prices: list[int]) -> int:
    """Return the sum."""
    return sum(prices)


@task(retry_on=ConnectionError, max_attempts=5, backoff=exponential(base=2, cap=600))
def send_receipt(customer: str) -> str:
    """Send a receipt. The mail server does not answer the first attempt."""
    if job.attempt == 1:
        raise ConnectionError("the mail server does not answer")
    return f"sent to {customer} by try {job.attempt}"


@task(max_attempts=11)
def wait_for_payment(customer: str) -> str:
    """Return as soon as the customer has paid."""
    if not Payment.objects.filter(customer=customer).exists():
        raise Retry(delay=1, reason="not paid yet")
    return "paid"


@task(timeout=30, schedule=Cron("@daily", name="close the day"))
def close_the_day() -> str:
    """Close the day."""
    try:
        return "closed"
    except TaskTimeout:
        return "not closed"
