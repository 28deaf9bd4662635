"""Hidden values in edited arguments."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from stoker.tasks.arguments import HIDDEN
from stoker.tasks.edited_arguments import MOST_PATH_SETS, restored
from stoker.values.text import plain

from tests.app.payments import IBAN, TOKEN

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("edited", "before", "wanted"),
    [
        ([8, HIDDEN], (7, IBAN), [8, IBAN]),
        (
            {"a": {"token": HIDDEN, "b": 2}},
            {"a": {"token": TOKEN, "b": 1}},
            {"a": {"token": TOKEN, "b": 2}},
        ),
        ([8], (7, IBAN), [8]),
        ([[[8, HIDDEN], [7, HIDDEN]]], ([(6, IBAN), (7, "DE1")],), [[[8, IBAN], [7, "DE1"]]]),
        ([{"id": 2, "token": "new"}], [{"id": 1, "token": TOKEN}], [{"id": 2, "token": "new"}]),
        ([7, HIDDEN, "CHF"], (7, IBAN), [7, IBAN, "CHF"]),
        ([[HIDDEN, "DE1"]], [[IBAN]], [[IBAN, "DE1"]]),
        (
            [[["CHF", HIDDEN], ["CHF", HIDDEN]]],
            [[("CHF", 1), ("EUR", 2)]],
            [[["CHF", 1], ["CHF", 2]]],
        ),
        ([[[True, HIDDEN], [True, HIDDEN]]], [[(True, 1), (False, 2)]], [[[True, 1], [True, 2]]]),
    ],
)
def test_hidden_values_are_restored_in_their_places(edited: Any, before: Any, wanted: Any) -> None:
    assert restored(edited, before) == wanted


@pytest.mark.parametrize(
    ("edited", "before"), [([HIDDEN], ()), ({"order": HIDDEN}, {"token": TOKEN})]
)
def test_hidden_value_in_another_place_is_refused(edited: Any, before: Any) -> None:
    with pytest.raises(ValueError, match="write a value instead of"):
        restored(edited, before)


def account(number: int, token: str = HIDDEN) -> dict[str, Any]:
    return {"id": number, "cards": [{"token": token}]}


@pytest.mark.parametrize(
    "edited",
    [
        [account(2), account(3)],
        [account(1), account(2)],
        [account(4, "new"), account(1), account(2), account(3)],
        [account(1), account(4, "new"), account(2), account(3)],
        [account(1), account(3), account(2)],
        [account(2), account(3), account(1)],
        [account(2), account(3), account(4, "new")],
        [account(4, "new"), account(1), account(2)],
        [account(2), account(2, "new"), account(3)],
        [account(1), account(2), account(4), account(4, "new")],
    ],
    ids=[
        "removed",
        "last one removed",
        "inserted first",
        "inserted",
        "swapped",
        "rotated",
        "shifted to the front",
        "shifted to the back",
        "replaced",
        "changed and added",
    ],
)
def test_hidden_value_of_an_element_that_may_have_moved_is_refused(edited: list[Any]) -> None:
    before = [account(number, f"token of {number}") for number in (1, 2, 3)]
    with pytest.raises(ValueError, match="added, removed or moved"):
        restored([{"accounts": edited}], ({"accounts": before},))


def test_hidden_value_in_an_added_element_is_refused() -> None:
    with pytest.raises(ValueError, match="write a value instead of"):
        restored([account(1), account(2)], [account(1, TOKEN)])


def test_changes_of_elements_with_many_sets_of_hidden_values_are_refused() -> None:
    """To compare them would take too long."""
    count = MOST_PATH_SETS + 1
    before = [{"id": place, f"token {place}": TOKEN} for place in range(count)]
    shown = [{"id": place, f"token {place}": HIDDEN} for place in range(count)]
    assert restored(shown, before) == before
    shown[0]["id"] = count
    assert restored(shown, before) == [before[0] | {"id": count}, *before[1:]]
    with pytest.raises(ValueError, match="added, removed or moved"):
        restored([row | {"id": count} for row in shown], before)


@pytest.mark.parametrize("edited", [[[8, HIDDEN]], [[8, HIDDEN], [7, HIDDEN]]])
def test_hidden_value_of_a_moved_call_of_a_starmap_is_refused(edited: list[Any]) -> None:
    with pytest.raises(ValueError, match="added, removed or moved"):
        restored([edited], ([(7, IBAN), [8, "DE1"]],))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (UUID(int=1), UUID(int=2)),
        (Decimal("1.50"), Decimal("2.50")),
        (date(2030, 1, 1), date(2030, 1, 2)),
        (datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)),
        (b"one", b"two"),
        ({1: "a"}, {2: "a"}),
        ({"one", "two", "three"}, {"one", "two"}),
        (10**5000, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_moved_element_is_found_in_the_form_that_the_http_api_shows(one: Any, other: Any) -> None:
    before = [{"id": one, "token": "token of 1"}, {"id": other, "token": "token of 2"}]
    shown = [{"id": plain(value), "token": HIDDEN} for value in (one, other)]
    assert [row["token"] for row in restored(shown, before)] == ["token of 1", "token of 2"]
    with pytest.raises(ValueError, match="added, removed or moved"):
        restored(shown[::-1], before)


def test_float_that_a_client_sends_as_a_whole_number_is_the_same_value() -> None:
    before = [{"id": 1.0, "token": "token of 1"}, {"id": 2.0, "token": "token of 2"}]
    with pytest.raises(ValueError, match="added, removed or moved"):
        restored([{"id": 2, "token": HIDDEN}, {"id": 1, "token": HIDDEN}], before)
