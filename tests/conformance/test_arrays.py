"""PostgreSQL returns the values of array literals unchanged."""

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.store.written import array_literal

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


def comes_back(values: Sequence[Any], kind: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT %s::{kind}[]", [array_literal(values)])
        found = cursor.fetchone()[0]
    assert [bytes(one) if isinstance(one, memoryview) else one for one in found] == values


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(st.none() | TEXT),
    data=st.lists(st.none() | st.binary()),
    numbers=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    moments=st.lists(st.none() | st.floats(0, 2**40)),
    ids=st.lists(st.none() | st.uuids()),
)
def test_every_value_survives_an_array_literal(texts, data, numbers, moments, ids) -> None:  # type: ignore[no-untyped-def] # as above
    comes_back(texts, "varchar")
    comes_back(data, "bytea")
    comes_back(numbers, "bigint")
    comes_back(moments, "float8")
    comes_back(ids, "uuid")
