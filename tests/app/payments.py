"""A task with secrets among its arguments."""

from typing import Any

from stoker import Lock, Unique, task


@task(describe="order {order_id}", redact=["iban"], max_attempts=1)
def pay(order_id: int, iban: str, *, password: str = "", more: Any = None) -> str:
    if order_id < 0:
        raise ValueError("refused")
    return "paid"


IBAN, PASSWORD, TOKEN = "DE02120300000000202051", "correct horse", "tok-4711"
SECRETS = (IBAN, PASSWORD, TOKEN)
MORE = {"shop": {"api_token": TOKEN, "currency": "EUR"}}


@task
def plain(order_id: int, *, note: str = "") -> None: ...


@task(redact=["note"])
def discreet(order_id: int, *, note: str = "") -> None: ...


@task(describe="key {api_key}")
def call_provider(api_key: str) -> None: ...


@task(unique=Unique("invoice:{number}"))
def invoice(number: int, note: str) -> str:
    return f"{number} {note}"


@task(lock=Lock("till:{number}"))
def charge_till(number: int) -> None: ...
