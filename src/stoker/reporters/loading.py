"""Reporters are found by name: Stoker's own, those of the entry point group ``stoker.reporters``,
or a dotted path."""

from __future__ import annotations

from importlib.metadata import entry_points

from django.utils.module_loading import import_string

from stoker.exceptions import ConfigurationError
from stoker.setting_values import NamedReporter

from .base import Reporter

GROUP = "stoker.reporters"
OWN = {
    "sentry": "stoker.reporters.sentry.SentryReporter",
    "rollbar": "stoker.reporters.rollbar.RollbarReporter",
    "opentelemetry": "stoker.reporters.opentelemetry.OpenTelemetryReporter",
    "prometheus": "stoker.reporters.prometheus.PrometheusReporter",
}


def load(alias: str, named: NamedReporter) -> Reporter:
    """Make a reporter, with its options.

    Raises:
        ConfigurationError: with a sentence that says why not.
    """
    where = f'TASKS["{alias}"]["OPTIONS"]["REPORTERS"]'
    kind = _find(where, named.name)
    if not (isinstance(kind, type) and issubclass(kind, Reporter)):
        raise ConfigurationError(
            f"{where} has {named.name!r}, which is no subclass of stoker.reporters.base.Reporter."
        )
    try:
        return kind(**named.options)
    except Exception as error:
        raise ConfigurationError(
            f"{where}: {named.name!r} does not take its options: {type(error).__name__}: {error}."
        ) from error


def _find(where: str, name: str) -> object:
    try:
        if name in OWN:
            return import_string(OWN[name])
        for point in entry_points(group=GROUP):
            if point.name == name:
                return point.load()
        if "." in name:
            return import_string(name)
    except ModuleNotFoundError as error:
        if name not in OWN:
            raise _not_imported(where, name, error) from error
        raise ConfigurationError(
            f"{where} has {name!r}, which needs the package {error.name!r}: "
            f"pip install 'django-stoker[{name}]'."
        ) from error
    except Exception as error:
        raise _not_imported(where, name, error) from error
    known = ", ".join(sorted({*OWN, *(point.name for point in entry_points(group=GROUP))}))
    raise ConfigurationError(
        f"{where} has {name!r}, and there is no reporter of that name: write one of {known}, or "
        "the dotted path of a class."
    )


def _not_imported(where: str, name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{where} has {name!r}, which cannot be imported: {type(error).__name__}: {error}."
    )
