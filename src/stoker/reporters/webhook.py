"""Webhooks: a signed POST for each event, sent by a job of Stoker.

The reporter only enqueues the job. In a cluster it does so in a thread of its own, so the job that
is reported and its transaction do not wait. The job sends the request. If that fails, it is
retried, and in the end becomes a dead letter, whose requeue sends the same event again.

Requests follow https://www.standardwebhooks.com: HMAC-SHA256 over id, timestamp and body.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from django.db import InterfaceError, OperationalError, connections, transaction

from stoker.conf import settings_for
from stoker.exceptions import BrokerError
from stoker.jobs.failures import Failure
from stoker.jobs.outcomes import Cancelled, Outcome, Succeeded
from stoker.jobs.results import Result
from stoker.jobs.running import Running
from stoker.models import Tick
from stoker.schedules.fire import Fired
from stoker.signals import tell
from stoker.tasks.backoff import exponential
from stoker.tasks.decorator import own_backends, task
from stoker.values.ids import new_job_id

from .base import Reporter
from .desk import Mailbox, is_round
from .facts import (
    Facts,
    arguments_of_failure,
    facts_of_attempt,
    facts_of_cancelled,
    facts_of_failure,
)

EVENTS = (
    "job.failed",
    "job.retried",
    "job.succeeded",
    "job.cancelled",
    "schedule.fired",
    "schedule.skipped",
)
SHORTEST_SECRET = 16
PREFIX = "whsec_"
"""Secrets with this prefix are base64."""
MAX_ATTEMPTS = 10
LONGEST_PAUSE_SECONDS = 3600.0
SEND_SECONDS = 10.0
JOB_SECONDS = 60.0
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, *[30.0] * 20)
"""Pauses before an event is enqueued again if the store does not answer: ten minutes in all."""
MAY_PASS = (BrokerError, OperationalError, InterfaceError)
LONGEST_ANSWER = 200
"""Maximum number of bytes of an answer that an error message quotes."""
GONE = 410


class WebhookFailed(Exception):
    """The receiver did not accept the event, so the job is retried."""


class WebhookGone(Exception):
    """The receiver accepts no more events, or the settings no longer name it."""


class WebhookReporter(Reporter):
    """Sends events to a URL.

    Args:
        url: of the receiver.
        secret: for the signature, 16 characters or more; base64 after the prefix ``whsec_``.
        events: some of ``EVENTS``.
        name: of the receiver, in the arguments of the jobs that send events. Default: its host.
        queue: of these jobs. Default: ``default`` if the backend has it, else its first queue in
            alphabetical order.
        arguments: whether events of failures contain the job's arguments.
    """

    never_waits = True  # its own thread does

    def __init__(
        self,
        *,
        url: str,
        secret: str,
        events: Iterable[str] = ("job.failed",),
        name: str = "",
        queue: str = "",
        arguments: bool = False,
    ) -> None:
        address = urlsplit(url)
        if "@" in address.netloc:
            raise ValueError("url: leave out the user name and password, which are never sent")
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"url: {url!r} is not an address that begins with https:// or http://")
        key_of(secret)
        self._events = frozenset(events)
        if isinstance(events, str) or not self._events <= set(EVENTS):
            raise ValueError(f"events: write a list of some of {', '.join(EVENTS)}")
        self.label = receiver_name({"url": url, "name": name})
        self._queue_of_jobs = queue
        self._shows_arguments = arguments
        self._mailbox = Mailbox("webhook")
        self._lost = 0
        """Number of events whose jobs could not be enqueued."""
        self._is_in_cluster = False

    def begin(self, role: str) -> None:
        """Enqueue in a thread from now on. Elsewhere, as in a test, there is no cluster that would
        wait, and a thread would commit the job outside of the caller's transaction."""
        self._is_in_cluster = True

    def on_end(self, running: Running, result: Result[Any], outcome: Outcome) -> None:
        event = {Succeeded: "job.succeeded", Cancelled: "job.cancelled"}.get(type(outcome), "")
        if event in self._events and running.task != send_webhook.module_path:
            facts = {"job": facts_of_attempt(running, result)}
            self._put(running.backend, event, facts)

    def on_cancel(self, failure: Failure) -> None:
        if "job.cancelled" in self._events and failure.task != send_webhook.module_path:
            self._put(failure.backend, "job.cancelled", {"job": facts_of_cancelled(failure)})

    def on_failure(self, failure: Failure) -> None:
        event = "job.failed" if failure.is_final else "job.retried"
        if event not in self._events or failure.task == send_webhook.module_path:
            return
        fault = failure.fault
        facts: Facts = {
            "job": facts_of_failure(failure),
            "error": {"class": fault.exception_class, "message": fault.message},
        }
        if self._shows_arguments:
            facts["arguments"] = arguments_of_failure(failure)
        self._put(failure.backend, event, facts)

    def on_tick(self, fired: Fired) -> None:
        event = "schedule.fired" if fired.job_id else "schedule.skipped"
        if event in self._events and fired.outcome != Tick.Outcome.HELD:
            facts = {
                "schedule": fired.schedule.name,
                "outcome": fired.outcome,
                "count": fired.count,
                "scheduled_for": _moment(fired.moment_us / 1e6),
                "job_id": str(fired.job_id) if fired.job_id else None,
            }
            self._put(fired.schedule.backend, event, facts)

    def flush(self, seconds: float) -> None:
        self._mailbox.flush(seconds)

    def _put(self, backend: str, event: str, facts: Facts) -> None:
        body = json.dumps({"type": event, "timestamp": _moment(time.time()), "data": facts})
        enqueue = partial(self._enqueue, backend, event, str(new_job_id()), body)
        if self._is_in_cluster:
            self._mailbox.put(partial(self._enqueue_in_thread, enqueue, backend))
            return
        try:
            alias = settings_for(backend).database
            is_inside = connections[alias].in_atomic_block
            with transaction.atomic(using=alias) if is_inside else nullcontext():
                enqueue()
        except Exception as error:  # noqa: BLE001 - a reporter harms no job
            self._lose(error)

    def _enqueue(self, backend: str, event: str, event_id: str, body: str) -> None:
        queue = self._queue_of_jobs or _queue_of(settings_for(backend).queues)
        sender = send_webhook.using(backend=backend, queue_name=queue)
        sender.enqueue(self.label, event, event_id, body)

    def _enqueue_in_thread(self, enqueue: Callable[[], object], backend: str) -> None:
        """Enqueue an event. Retry while the store does not answer, because that is when jobs fail.
        Later events wait in the mailbox, which is bounded."""
        pauses = iter(PAUSES_SECONDS)
        while True:
            try:
                enqueue()
            except Exception as error:  # noqa: BLE001 - the thread must go on whatever is wrong
                pause = next(pauses, None) if isinstance(error, MAY_PASS) else None
                if pause is None:
                    self._lose(error)
                    return
            else:
                return
            finally:
                # No other code closes the connections of this thread.
                connections[settings_for(backend).database].close()
            time.sleep(pause)

    def _lose(self, error: Exception) -> None:
        self._lost += 1
        if is_round(self._lost):
            tell("webhooks_lost", count=self._lost, error=f"{type(error).__name__}: {error}")


def _home() -> tuple[str, str]:
    """Return a backend and one of its queues, for the declaration of the task."""
    for alias, backend in own_backends().items():
        return alias, _queue_of(sorted(backend.queues))
    return "default", "default"


def _queue_of(queues: Sequence[str]) -> str:
    """Return "default" if the setting ``QUEUES`` includes it or is empty, else the first queue."""
    return queues[0] if queues and "default" not in queues else "default"


_backend, _queue = _home()


@task(
    backend=_backend,
    queue_name=_queue,
    max_attempts=MAX_ATTEMPTS,
    backoff=exponential(base=3.0, cap=LONGEST_PAUSE_SECONDS),
    give_up_on=WebhookGone,
    timeout=JOB_SECONDS,
    describe="{event} to {receiver}",
    takes_context=True,
)
def send_webhook(context: Any, receiver: str, event: str, event_id: str, body: str) -> int:
    """Send an event to a receiver, and return the status of its answer.

    Raises:
        WebhookFailed: the receiver cannot be reached, or did not answer 2xx.
        WebhookGone: the receiver answered 410, or the settings do not name it.
    """
    options = _options_of(context.task_result.backend, receiver)
    sent_at = str(int(time.time()))
    content = body.encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Stoker",
        "webhook-id": event_id,
        "webhook-timestamp": sent_at,
        "webhook-signature": signature(options["secret"], event_id, sent_at, content),
    }
    url = options["url"]
    request = urllib.request.Request(url, content, headers, method="POST")  # noqa: S310 - checked
    try:
        with _opener.open(request, timeout=SEND_SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        quoted = error.read(LONGEST_ANSWER).decode(errors="replace")
        sentence = f"{receiver} answered {error.code}: {quoted}"
        raise (WebhookGone if error.code == GONE else WebhookFailed)(sentence) from None
    except OSError as error:
        raise WebhookFailed(f"{receiver} cannot be reached: {error}") from error


def signature(secret: str, event_id: str, timestamp: str, body: bytes) -> str:
    """Return the value of the header ``webhook-signature``."""
    signed = f"{event_id}.{timestamp}.".encode() + body
    digest = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def key_of(secret: Any) -> bytes:
    """Return the key for the signature.

    Raises:
        ValueError: the secret is too short, or not base64 after the prefix.
    """
    if not isinstance(secret, str) or len(secret) < SHORTEST_SECRET:
        raise ValueError(f"secret: write {SHORTEST_SECRET} characters or more")
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"secret: it is not base64 after {PREFIX}: {error}") from None


def receiver_name(options: Any) -> str:
    """Return the name of the receiver that these options of a reporter describe; "" = none."""
    return str(options.get("name") or urlsplit(str(options.get("url", ""))).hostname or "")


def _options_of(backend: str, receiver: str) -> Any:
    """Return the options for a receiver. Its URL and secret are not in the job, so that they can be
    changed before a dead letter is requeued."""
    for one in settings_for(backend).reporters:
        if "secret" in one.options and receiver_name(one.options) == receiver:
            return one.options
    raise WebhookGone(f"REPORTERS of {backend!r} name no webhook for {receiver}.")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: urllib would follow it with a GET, without the body."""

    def redirect_request(self, *_: Any, **__: Any) -> None: ...


_opener = urllib.request.build_opener(_NoRedirects)
