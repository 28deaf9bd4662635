"""Search the names, errors and arguments of jobs for a text that a person has typed.

Arguments are sealed, so no index contains them. The bytes of each package are searched first, and
only packages that may match are opened. Hidden arguments never match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from functools import cached_property
from typing import Any

from stoker.conf import Settings
from stoker.exceptions import PackageError, UnknownTask
from stoker.tasks.arguments import Hidden, ShownCall, shown_call
from stoker.tasks.registry import find_task
from stoker.values.ids import parse_job_id
from stoker.values.text import stored_text

from .envelope import COMPRESSED, HEADER_BYTES, PICKLED, SIGNATURE_BYTES
from .package import sealer_for

MOST_OPENED = 500
"""Maximum number of packages to open in one search."""
LONGEST_TEXT = 200
LARGEST_BYTES = 16_384
"""Maximum size of a package whose arguments are searched."""
NAMED = re.compile(r"\s*([^\W\d]\w*)\s*=\s*(.+?)\s*", re.DOTALL)
FLAGS_AT = HEADER_BYTES - 1


class Needle:
    """A text to search for: ``order 7``, or ``order_id=7`` for one argument.

    Args:
        settings: the backend's.
        text: the comparison ignores case.
    """

    def __init__(self, settings: Settings, text: str) -> None:
        self.text = stored_text(text, LONGEST_TEXT).strip().casefold()
        self._settings = settings
        named = NAMED.fullmatch(self.text)
        self._name, self._value = named.groups() if named else ("", self.text)
        self._opened = 0
        self._templates: dict[str, str] = {}

    @property
    def is_exhausted(self) -> bool:
        """Return whether the search has opened the maximum number of packages."""
        return self._opened >= MOST_OPENED

    def rest(self) -> None:
        """Reset the number of opened packages to 0."""
        self._opened = 0

    def matches(self, task: str, texts: Iterable[str], package: bytes | None) -> bool:
        """Return whether a job matches.

        Args:
            task: dotted path.
            texts: other texts of the job to search, such as its errors.
            package: None = the package is too large to be searched.
        """
        if any(self.text in one.casefold() for one in (task, *texts)):
            return True
        if package is None or not self._may_match(task, package):
            return False
        self._opened += 1
        try:
            opened = sealer_for(self._settings).open(package)
        except PackageError:
            return False
        return self._is_in(shown_call(opened, self._settings.redact))

    def _may_match(self, task: str, package: bytes) -> bool:
        """Return whether the package may match, without opening it."""
        flags = package[FLAGS_AT] if len(package) > HEADER_BYTES else PICKLED
        if flags & PICKLED:  # a search unpickles nothing
            return False
        if flags & COMPRESSED:
            return True
        body = package[HEADER_BYTES:-SIGNATURE_BYTES].decode(errors="replace").casefold()
        body += self._template_of(task)
        return all(any(one in body for one in spellings) for spellings in self._words)

    @cached_property
    def _words(self) -> list[tuple[str, ...]]:
        """Return the spellings of each searched word. A package contains text as JSON writes it,
        and a job's id with or without hyphens."""
        return [_spellings(word) for word in self._value.split()]

    def _template_of(self, task: str) -> str:
        """Return the text of the task's option ``describe``; empty if it has none."""
        if task not in self._templates:
            try:
                template = getattr(find_task(task), "describe", None) or ""
            except UnknownTask:
                template = ""
            self._templates[task] = template.casefold()
        return self._templates[task]

    def _is_in(self, call: ShownCall) -> bool:
        if not self._name:
            values = [value for _, value in call.pairs]
            return self.text in call.label.casefold() or self._is_among(values)
        return self._is_among([value for name, value in call.pairs if name.lower() == self._name])

    def _is_among(self, values: list[Any]) -> bool:
        return any(self._value in one.casefold() for value in values for one in _texts(value))


def _spellings(word: str) -> tuple[str, ...]:
    written = json.dumps(word, ensure_ascii=False)[1:-1]
    job_id = parse_job_id(word)
    return (written,) if job_id is None else (written, job_id.hex, str(job_id))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in an argument, without the hidden ones."""
    if isinstance(value, Hidden):
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, date | time):
        yield value.isoformat()
    elif not isinstance(value, bytes):
        yield str(value)
