"""A waiting task in the tables of Django Q."""

import pickle
from uuid import uuid4

from django.apps import apps
from django.conf import settings
from django.core.signing import TimestampSigner, b64_encode
from django.utils import timezone


def leave_a_task(function: str, *args: object) -> None:
    """Write the row that ``async_task(function, *args)`` of Django Q 2 writes."""
    package = {
        "id": uuid4().hex,
        "name": "left by Django Q",
        "func": function,
        "args": args,
        "kwargs": {},
        "started": timezone.now(),
    }
    signer = TimestampSigner(salt=settings.Q_CLUSTER["name"])
    payload = signer.sign(b64_encode(pickle.dumps(package)).decode())
    rows = apps.get_model("django_q", "OrmQ").objects
    rows.create(key=settings.Q_CLUSTER["name"], payload=payload, lock=timezone.now())
