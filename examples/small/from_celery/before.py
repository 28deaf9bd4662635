"""The tasks as they were with Celery: compare them with ``tasks.py``. Nothing imports this file."""

from celery import chord, shared_task
from celery.exceptions import SoftTimeLimitExceeded

from .models import Payment


@shared_task(queue="prices", ignore_result=False)
def price_of(item):
    return {"kettle": 30, "teapot": 20}[item]


@shared_task
def add_up(prices):
    return sum(prices)


@shared_task(
    bind=True,
    autoretry_for=(ConnectionError,),
    max_retries=4,
    retry_backoff=True,
    retry_backoff_max=600,
)
def send_receipt(self, customer):
    if self.request.retries == 0:
        raise ConnectionError("the mail server does not answer")
    return f"sent to {customer} by try {self.request.retries + 1}"


@shared_task(bind=True, max_retries=10)
def wait_for_payment(self, customer):
    if not Payment.objects.filter(customer=customer).exists():
        raise self.retry(countdown=1)
    return "paid"


@shared_task(soft_time_limit=30, time_limit=35)
def close_the_day():
    try:
        return "closed"
    except SoftTimeLimitExceeded:
        return "not closed"


def use_them():
    price = price_of.delay("kettle")
    receipt = send_receipt.apply_async(args=["alice"], countdown=1, expires=3600)
    total = chord([price_of.s("kettle"), price_of.s("teapot")])(add_up.s())
    return price.get(timeout=60), receipt.get(timeout=60), total.get(timeout=60)


CELERY_BEAT_SCHEDULE = {
    "close the day": {
        "task": "examples.small.from_celery.before.close_the_day",
        "schedule": 24 * 3600,
    }
}
