"""A model field that stores any serialisable value, in the format of Stoker's return values."""

from __future__ import annotations

from typing import Any

from django.db import models

from stoker.contrib.django_q import conf
from stoker.exceptions import PackageError
from stoker.jobs.package import sealer_for


class Raw(bytes):
    """A value that is already sealed."""

    __slots__ = ()


class Unreadable(str):
    """Replaces a value that cannot be read here, and contains the reason."""

    __slots__ = ()


class SealedField(models.BinaryField):  # type: ignore[type-arg] # generic in the stubs only
    """Stores JSON with the codec's tags, or a signed pickle if SERIALIZER is "pickle"."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None:
            return None
        try:
            return sealer_for(conf.settings()).open_value(bytes(value))
        except PackageError as error:
            return Unreadable(str(error))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if value is not None and not isinstance(value, Raw):
            value = sealer_for(conf.settings()).seal_value(value)
        return super().get_db_prep_value(value, connection, prepared)

    def value_from_object(self, obj: models.Model) -> Any:
        return getattr(obj, self.attname)

    def value_to_string(self, obj: models.Model) -> str:
        return str(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        return value
