"""What is wrong in an entry of ``TASKS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from .setting_values import are_queue_names, suggestion

ENTRY_KEYS = ("BACKEND", "QUEUES", "OPTIONS")
"""What one entry of ``TASKS`` may have."""


def problems_of(
    alias: str, params: Mapping[str, Any], known: Mapping[str, Field[Any]]
) -> list[str]:
    """One sentence for each option that cannot be used.

    Args:
        alias: the name under ``TASKS``.
        params: the entry of that name.
        known: the options that there are, by key.
    """
    found = []
    options = params.get("OPTIONS", {})
    where = f'TASKS["{alias}"]["OPTIONS"]'
    for key in params:
        if key not in ENTRY_KEYS:
            entry = f'TASKS["{alias}"]'
            found.append(f"{entry} has no key {key!r}.{suggestion(str(key), ENTRY_KEYS)}")
    if not are_queue_names(params.get("QUEUES", [])):
        found.append(
            f'TASKS["{alias}"]["QUEUES"] must be a list of names of up to 100 characters; '
            "an empty one takes any name."
        )
    if not isinstance(options, Mapping):
        return [*found, f"{where} must be a dict of options."]
    for key, value in options.items():
        if key not in known:
            found.append(f"{where} has no option {key!r}.{suggestion(str(key), known)}")
            continue
        try:
            known[key].metadata["check"](value)
        except ValueError as error:
            found.append(f'{where}["{key}"] is {value!r}, but {error}.')
    return found
