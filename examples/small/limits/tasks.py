"""The jobs that call the API."""

import time

from stoker import Limit, Rate, Unique, task

from .models import Call


@task(rate=Rate("5/s", "api"), limit=Limit(2, "api"), unique=Unique("{customer}"))
def fetch_invoices(customer: str) -> None:
    """Fetch the invoices of a customer from an API with strict limits."""
    Call.objects.create(customer=customer, began_at=time.time())
