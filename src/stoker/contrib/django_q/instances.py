"""Model instances as arguments and results: they are sent as their model, database and primary key.

A worker reads the row when the job runs, so that the function sees the row's current values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.db.models import Model
from django.utils.functional import SimpleLazyObject

from stoker.exceptions import NotSerializable
from stoker.values.codec import encode, register

TAG = "$model"


class ModelReference(SimpleLazyObject):  # type: ignore[type-arg] # generic in the stubs only
    """Stands for a model instance. The row is read when an attribute is first accessed.

    Args:
        reference: ``(model label, database alias, primary key)``.
    """

    def __init__(self, reference: tuple[str, str, Any]) -> None:
        super().__init__(lambda: _read_row(*reference))
        self.__dict__["_reference"] = reference

    def __repr__(self) -> str:
        label, _, key = self.__dict__["_reference"]
        return f"<{label} {key}>"

    @property
    def row(self) -> Model:
        """The instance itself. Raises DoesNotExist if the row was deleted."""
        return _read_row(*self.__dict__["_reference"])


def allow_references() -> None:
    """Register references with the JSON codec, so that packages and results may contain them."""
    register(TAG, {ModelReference: _encode}, ModelReference)


def as_references(value: Any) -> Any:
    """Replace the model instances in lists, tuples and dicts by references.

    Raises:
        NotSerializable: an instance is not saved.
    """
    if isinstance(value, ModelReference):  # first, because isinstance() below would read the row
        return value
    if isinstance(value, Model):
        if value.pk is None or value._state.adding:
            raise NotSerializable(
                f"{value!r} is not saved, so that no worker could read it: save it first."
            )
        return ModelReference((value._meta.label, value._state.db or "default", value.pk))
    return _in_containers(as_references, value)


def read_rows(value: Any) -> Any:
    """Replace the references in lists, tuples and dicts by instances.

    Raises:
        DoesNotExist: a row was deleted.
        LookupError: this process does not have the model.
    """
    if isinstance(value, ModelReference):
        return value.row
    return _in_containers(read_rows, value)


def _in_containers(function: Callable[[Any], Any], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(function, value))
    if type(value) is dict:
        return {key: function(item) for key, item in value.items()}
    return value


def _encode(reference: ModelReference, _: int) -> dict[str, Any]:
    return {TAG: encode(reference.__dict__["_reference"])}


def _read_row(label: str, alias: str, key: Any) -> Model:
    model = apps.get_model(label)
    try:
        row: Model = model._base_manager.using(alias).get(pk=key)
    except model.DoesNotExist as error:
        message = f"There is no {label} with the primary key {key!r} any more."
        raise model.DoesNotExist(message) from error
    return row
