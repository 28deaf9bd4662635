"""Checks of settings: each returns the value to use, or raises ValueError with the rest of a
sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string
from django.views.decorators.debug import sensitive_variables

from stoker.exceptions import ConfigurationError
from stoker.values.durations import is_whole, number_of_seconds

Check = Callable[[Any], Any]


def one_of(*choices: str) -> Check:
    def check(value: Any) -> Any:
        if value not in choices:
            raise ValueError("must be one of " + ", ".join(repr(choice) for choice in choices))
        return value

    return check


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a non-empty string")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be True or False")
    return value


def suggestion(key: str, known: Iterable[str]) -> str:
    """Suggest a similar key, or list the known ones."""
    near = difflib.get_close_matches(key.upper(), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else " Known: " + ", ".join(known) + "."


LONGEST_QUEUE = 100
"""Maximum number of characters of the name of a queue."""
QUEUE_NAME = f"a name has 1 to {LONGEST_QUEUE} characters, no NUL and no half of a surrogate pair"
"""The rule of ``is_queue_name`` in words."""
UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def is_queue_name(value: Any) -> bool:
    """Return whether the value can be the name of a queue."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= LONGEST_QUEUE
        and UNSTORABLE.search(value) is None
    )


def are_queue_names(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(map(is_queue_name, value))


def names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(name, str) and name for name in value
    ):
        raise ValueError("must be a list of names")
    return tuple(value)


def whole(minimum: int, maximum: int = 2**31 - 1) -> Check:
    def check(value: Any) -> int:
        if not is_whole(value):
            raise ValueError("must be a whole number")
        if not minimum <= value <= maximum:
            raise ValueError(f"must be between {minimum} and {maximum}")
        return value

    return check


def results_place(value: Any) -> str:
    name = value.removeprefix("cache:") if isinstance(value, str) else ""
    if value not in ("database", "redis") and not (name and name != value):
        raise ValueError(
            "must be 'database', 'redis', or 'cache:' and the name of a cache of CACHES"
        )
    return str(value)


def checked_limit(limit: Any) -> int:
    """Check a maximum number.

    Raises:
        ValueError: it is not a whole number above 0.
    """
    try:
        return int(whole(1)(limit))
    except ValueError as error:
        raise ValueError(f"limit={limit!r} {error}.") from None


def seconds(minimum: float, maximum: float = float("inf")) -> Check:
    def check(value: Any) -> float:
        number = number_of_seconds(value)
        if number is None:
            raise ValueError("must be a number of seconds or a timedelta")
        if not minimum <= number < float("inf"):
            raise ValueError(f"must be a number of seconds, at least {minimum:g}")
        if number > maximum:
            raise ValueError(f"must be a number of seconds, at most {maximum:,}")
        return float(number)

    return check


def optional(check: Check) -> Check:
    def checked(value: Any) -> Any:
        return None if value is None else check(value)

    return checked


def backoff(value: Any) -> Any:
    """Check a callable, a number of seconds or a list of them. ``as_backoff`` turns it into a
    callable."""
    if callable(value):
        return value
    if isinstance(value, list | tuple) and value:
        return tuple(seconds(0)(delay) for delay in value)
    return seconds(0)(value)


def compression(value: Any) -> int | None:
    if value is True:
        return 1024
    if value is False or value is None:
        return None
    return int(whole(1)(value))


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of results: how long, and how many are kept. None = without limit; 0 = none."""

    successful_seconds: float | None = 7 * 86400.0
    successful_count: int | None = None
    failed_seconds: float | None = 90 * 86400.0
    failed_count: int | None = None


RETENTION_CHECKS: Mapping[str, Check] = {
    "successful_seconds": optional(seconds(0)),
    "successful_count": optional(whole(0)),
    "failed_seconds": optional(seconds(0)),
    "failed_count": optional(whole(0)),
}

Terms = TypeVar("Terms")


def terms_of(
    kind: type[Terms], value: Any, checks: Mapping[str, Check], accepted: str = "a dict"
) -> Terms:
    """Check the settings in a dict. Return them as an object of this class.

    Args:
        checks: key -> its check.
        accepted: kinds of values for the message.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping) or not set(value) <= set(checks):
        raise ValueError(f"must be {accepted} with some of " + ", ".join(checks))
    checked = {}
    for key, one in value.items():
        try:
            checked[key] = checks[key](one)
        except ValueError as error:
            raise ValueError(f"its {key!r} {error}") from None
    return kind(**checked)


def retention(value: Any) -> Retention:
    if value is True:
        return Retention(None, None, None, None)
    if value is False:
        return Retention(successful_seconds=0)
    return terms_of(Retention, value, RETENTION_CHECKS, "True, False, or a dict")


@dataclass(frozen=True, slots=True)
class LetterRetention:
    """Retention of dead letters: how long they are kept. None = without limit."""

    closed_seconds: float | None = 30 * 86400.0
    open_seconds: float | None = None


def letter_retention(value: Any) -> LetterRetention:
    checks = dict.fromkeys(("closed_seconds", "open_seconds"), optional(seconds(0)))
    return terms_of(LetterRetention, value, checks)


Kept = TypeVar("Kept", bound=Retention | LetterRetention)


def longest(retentions: Iterable[Kept]) -> Kept:
    """Return a retention that keeps everything that one of these keeps."""
    some = list(retentions)
    limits = {
        name: [getattr(one, name) for one in some]
        for name in (spec.name for spec in fields(some[0]))
    }
    return type(some[0])(
        **{name: None if None in given else max(given) for name, given in limits.items()}
    )


@dataclass(frozen=True, slots=True)
class LogKeeping:
    """Retention of log lines: which lines, how many, and how long."""

    level: str = "INFO"
    keep_seconds: float = 7 * 86400.0
    max_lines: int = 1000
    """Maximum number of lines per attempt."""
    max_bytes: int = 1 << 18
    """Maximum total size of the lines of one attempt, in bytes."""


LOG_CHECKS: Mapping[str, Check] = {
    "level": one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    "keep_seconds": seconds(1),
    "max_lines": whole(1, 1_000_000),
    "max_bytes": whole(1024),
}


def log_keeping(value: Any) -> LogKeeping:
    return terms_of(LogKeeping, value, LOG_CHECKS, "None, or a dict")


@dataclass(frozen=True, slots=True)
class NamedReporter:
    """A reporter as named in the settings."""

    name: str
    """Name of a built-in reporter or an entry point, or a dotted path."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


def reporters(value: Any) -> tuple[NamedReporter, ...]:
    wanted = (
        "must be a list of names, or a dict of names and their options; "
        "a list of options makes several reporters of that name"
    )
    if isinstance(value, Mapping):
        given = dict(value)
    elif isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        given = {name: {} for name in value}
    else:
        raise ValueError(wanted)
    found = []
    for name, several in given.items():
        if not isinstance(name, str) or not name:
            raise ValueError(wanted)
        for options in several if isinstance(several, list | tuple) else [several]:
            if not isinstance(options, Mapping):
                raise ValueError(wanted)
            if not all(isinstance(key, str) and key.isidentifier() for key in options):
                raise ValueError(f"must name the options of {name!r} by identifiers")
            found.append(NamedReporter(name, dict(options)))
    return tuple(found)


def option(key: str, default: Any, check: Check, doc: str, *, in_hash: bool = False) -> Any:
    """Define a dataclass field with its key, its check and its documentation.

    Args:
        in_hash: whether the hash of the object depends on it. Few do, because caches compute the
            hash for each job.
    """
    metadata = {"key": key, "check": check, "doc": doc}
    return field(default=default, hash=in_hash, metadata=metadata)


def fields_by_key(kind: Any) -> dict[str, Field[Any]]:
    """Return the options of a class by key, in the order of the documentation."""
    return {spec.metadata["key"]: spec for spec in fields(kind) if spec.metadata}


def checked_options(given: Mapping[str, Any], known: Mapping[str, Field[Any]]) -> dict[str, Any]:
    """Return field name -> checked value. The options must have no problems."""
    return {known[key].name: known[key].metadata["check"](value) for key, value in given.items()}


def option_problems(where: str, given: Any, known: Mapping[str, Field[Any]]) -> list[str]:
    """Return one sentence for each invalid option.

    Args:
        where: the setting, as Python writes it.
        known: the known options by key.
    """
    if not isinstance(given, Mapping):
        return [f"{where} must be a dict of options."]
    found = []
    for key, value in given.items():
        if key not in known:
            found.append(f"{where} has no option {key!r}.{suggestion(str(key), known)}")
            continue
        try:
            known[key].metadata["check"](value)
        except ValueError as error:
            found.append(f'{where}["{key}"] is {value!r}, but {error}.')
    return found


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The checked settings in ``STOKER_API``."""

    session: bool = option(
        "SESSION", True, flag,
        "Whether users signed in to the site may use the API. Calls that change something "
        "need the CSRF token then, as forms do.",
    )  # fmt: skip
    token_user: str | None = option(
        "TOKEN_USER", None, optional(text),
        "Dotted path of a function that receives the token of `Authorization: Bearer TOKEN` "
        "and returns its user, or None. Default: tokens are not accepted.",
    )  # fmt: skip
    docs: bool = option(
        "DOCS", False, flag,
        "Whether staff has a page with the documentation of the API, at `docs`.",
    )  # fmt: skip
    max_body_bytes: int = option(
        "MAX_BODY_BYTES", 1 << 20, whole(1024),
        "Maximum size of a request.",
    )  # fmt: skip
    max_bulk: int = option(
        "MAX_BULK", 1000, whole(1, 100_000),
        "Maximum number of dead letters, or jobs of a queue, that one call may change.",
    )  # fmt: skip

    @sensitive_variables("token")
    def find_user_of(self, token: str) -> Any:
        """Return the user that this token belongs to, or None if it is unknown or tokens are
        disabled.

        Raises:
            ConfigurationError: ``TOKEN_USER`` does not name a function.
        """
        return None if self.token_user is None else _function(self.token_user)(token)


@cache
def api_settings() -> ApiSettings:
    """Return the settings in ``STOKER_API`` and their defaults.

    Raises:
        ConfigurationError: a setting is unknown or wrong; the message names the first one.
    """
    for problem in api_problems():
        raise ConfigurationError(problem)
    return ApiSettings(**checked_options(_given_for_api(), fields_by_key(ApiSettings)))


def api_problems() -> list[str]:
    """Return one sentence for each invalid setting."""
    return option_problems("STOKER_API", _given_for_api(), fields_by_key(ApiSettings))


def _given_for_api() -> Any:
    return getattr(django_settings, "STOKER_API", None) or {}


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
