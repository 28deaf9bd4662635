"""Requests to IronMQ: project and token, deadlines, and what it says when it is busy."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import httpx

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError

BUSY = (429, 502, 503, 504)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
FEWEST_TRIES = 2
"""A connection that was kept open may have been closed meanwhile."""
ADVICE = {
    401: "Check the token in BROKER: ironmq://PROJECT:TOKEN@HOST.",
    404: "Check the project and the host in BROKER: ironmq://PROJECT:TOKEN@HOST.",
}


class Refused(BrokerUnavailable):
    """IronMQ answered, and did not do it."""

    status: int = 0


class Service:
    """One project of ``ironmq://PROJECT:TOKEN@HOST``.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._base_url, self._token, self.shown = _parsed(settings)
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._process_id = 0

    def ask(
        self, verb: str, path: str, what: Any = None, *, wait_seconds: float = 0.0
    ) -> dict[str, Any]:
        """The answer to a request. While IronMQ is busy, it is repeated with growing pauses, for as
        long as ``DATABASE_SECONDS`` say. Whatever is asked here may be done twice.

        Raises:
            Refused: IronMQ says that it cannot be done.
            BrokerUnavailable: it did not answer, or is still busy.
        """
        until = time.monotonic() + self._settings.database_seconds
        pause, tries = FIRST_PAUSE_SECONDS, 0
        while True:
            tries += 1
            failure: Exception
            try:
                return self._answer(verb, path, what, wait_seconds)
            except Refused as refusal:
                if refusal.status not in BUSY:
                    raise
                failure = refusal
            except httpx.TimeoutException as error:
                raise self._explained(type(error).__name__) from error
            except httpx.HTTPError as error:
                failure = self._explained(str(error) or type(error).__name__)
                failure.__cause__ = error
                if tries < FEWEST_TRIES:
                    continue
            pause_seconds = pause * random.uniform(0.5, 1.0)  # noqa: S311 - to get out of step
            if time.monotonic() + pause_seconds > until:
                raise failure
            time.sleep(pause_seconds)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Hang up; the next request connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._process_id == os.getpid():
            client.close()

    def _answer(self, verb: str, path: str, what: Any, wait_seconds: float) -> dict[str, Any]:
        seconds = self._settings.database_seconds
        answer = self._connected().request(
            verb,
            f"{self._base_url}/{path}",
            json=what,
            timeout=httpx.Timeout(seconds, read=seconds + wait_seconds),
        )
        try:
            told = answer.json()
        except ValueError:
            told = {}
        told = told if isinstance(told, dict) else {}
        if answer.is_success:
            return told
        refusal = Refused(str(self._explained(_said(answer, told), ADVICE.get(answer.status_code))))
        refusal.status = answer.status_code
        raise refusal

    def _connected(self) -> httpx.Client:
        with self._lock:
            if self._client is None or self._process_id != os.getpid():
                headers = {"Authorization": f"OAuth {self._token}", "User-Agent": "stoker"}
                self._client = httpx.Client(headers=headers, trust_env=False)
                self._process_id = os.getpid()
            return self._client

    def _explained(self, said: str, advice: str | None = None) -> BrokerUnavailable:
        sentence = f"{self.shown} did not carry this out: {said.rstrip('.')}."
        return BrokerUnavailable(f"{sentence} {advice}" if advice else sentence)


def _said(answer: httpx.Response, told: dict[str, Any]) -> str:
    return f"{answer.status_code} {told.get('msg', answer.reason_phrase)}".strip()


def _parsed(settings: Settings) -> tuple[str, str, str]:
    shown = f"ironmq://{settings.broker.rpartition('@')[2] or 'HOST'}"
    try:
        parts = urlsplit(settings.broker)
        shown = f"ironmq://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
        _demand(bool(parts.hostname and parts.username and parts.password), "something is missing")
        given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        tls = given.pop("tls", "true")
        _demand(not given, f"there is no option {min(given, default='')!r}, only tls")
        _demand(tls in ("true", "false"), f"tls is {tls!r}, not true or false")
        project = quote(unquote(parts.username or ""), safe="")
    except ValueError as error:
        raise ConfigurationError(
            f"BROKER begins with {shown}, and cannot be used: {error}. Write "
            "ironmq://PROJECT:TOKEN@HOST, say with the host mq-aws-us-east-1-1.iron.io."
        ) from error
    scheme = "https" if tls == "true" else "http"
    host = parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}/3/projects/{project}", unquote(parts.password or ""), shown


def _demand(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ValueError(otherwise)
