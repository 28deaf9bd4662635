"""``STOKER_API``: the settings of the HTTP API. They are read here, so that ``manage.py check`` can
say what is wrong where the API's library is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from inspect import iscoroutinefunction
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .exceptions import ConfigurationError
from .setting_values import Check, flag, optional, text, whole


def option(key: str, default: Any, check: Check, doc: str) -> Any:
    """A field that knows its key, its check and its documentation."""
    return field(default=default, metadata={"key": key, "check": check, "doc": doc})


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """``STOKER_API``, checked."""

    session: bool = option(
        "SESSION", True, flag,
        "Whether users who are signed in to the site may use the API. Calls that change something "
        "need the CSRF token then, as forms do.",
    )  # fmt: skip
    token_user: str | None = option(
        "TOKEN_USER", None, optional(text),
        "The dotted path of a function that is given the token of `Authorization: Bearer TOKEN`, "
        "and returns the user that it is of, or None. Default: no tokens are taken.",
    )  # fmt: skip
    docs: bool = option(
        "DOCS", False, flag,
        "Whether staff has a page with the documentation of the API, at `docs`.",
    )  # fmt: skip
    max_body_bytes: int = option(
        "MAX_BODY_BYTES", 1 << 20, whole(1024),
        "The largest request that is read.",
    )  # fmt: skip
    max_bulk: int = option(
        "MAX_BULK", 1000, whole(1, 100_000),
        "How many dead letters, or jobs of a queue, one call may change.",
    )  # fmt: skip

    def find_user_of(self, token: str) -> Any:
        """The user whose token that is; None = nobody's, or there are no tokens.

        Raises:
            ConfigurationError: ``TOKEN_USER`` names no function.
        """
        return None if self.token_user is None else _function(self.token_user)(token)


def api_option_fields() -> dict[str, Field[Any]]:
    """Key -> field, in the order of documentation."""
    return {spec.metadata["key"]: spec for spec in fields(ApiSettings)}


@cache
def api_settings() -> ApiSettings:
    """The settings in force.

    Raises:
        ConfigurationError: with one sentence for the first that is unknown or wrong.
    """
    for problem in api_problems():
        raise ConfigurationError(problem)
    known = api_option_fields()
    given: Mapping[str, Any] = getattr(django_settings, "STOKER_API", None) or {}
    return ApiSettings(
        **{known[key].name: known[key].metadata["check"](value) for key, value in given.items()}
    )


def api_problems() -> list[str]:
    """One sentence for each setting that cannot be used."""
    given = getattr(django_settings, "STOKER_API", None) or {}
    if not isinstance(given, Mapping):
        return ["STOKER_API must be a dict of options."]
    known = api_option_fields()
    found = []
    for key, value in given.items():
        if key not in known:
            found.append(f"STOKER_API has no option {key!r}. Known: {', '.join(known)}.")
            continue
        try:
            known[key].metadata["check"](value)
        except ValueError as error:
            found.append(f'STOKER_API["{key}"] is {value!r}, but {error}.')
    return found


def _function(path: str) -> Callable[[str], Any]:
    try:
        function = import_string(path)
    except ImportError as error:
        raise ConfigurationError(
            f'STOKER_API["TOKEN_USER"] is {path!r}, which cannot be imported: {error}.'
        ) from error
    if not callable(function) or iscoroutinefunction(function):
        raise ConfigurationError(
            f'STOKER_API["TOKEN_USER"] is {path!r}: name a function (no async one) that takes a '
            "token and returns a user, or None."
        )
    return function  # type: ignore[no-any-return] # asked


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "STOKER_API":
        api_settings.cache_clear()


setting_changed.connect(_forget)
