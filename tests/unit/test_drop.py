"""Which databases are dropped after a run: its own, and nobody else's."""

import pytest

from tests.servers.drop import names_of

pytestmark = pytest.mark.unit

OURS = [
    "stoker_default_123x0a1b",
    "stoker_test_default_123x0a1b",
    "stoker_test_queue_123x0a1b_two_databases",
    "stoker_test_default_123x0a1b_postgres",
    "stoker_test_default_123x0a1b_unit_gw0",
]


def test_all_of_a_run_are_found() -> None:
    assert names_of("123x0a1b", OURS) == OURS


@pytest.mark.parametrize(
    "name",
    [
        "stoker_test_default_123x0a1b2",
        "stoker_test_default_123x0a1",
        "stoker_test_default_5123x0a1b_postgres",
        "stoker_test_default_777x0000_123x0a1b",
        "stoker_123x0a1b",
        "123x0a1b",
        "shop_123x0a1b",
        "shop_stoker_default_123x0a1b",
    ],
)
def test_those_of_others_are_left_alone(name: str) -> None:
    assert names_of("123x0a1b", [name]) == []


@pytest.mark.parametrize("word", ["", "test", "default", "queue", "stoker", ".*", "postgres"])
def test_a_word_that_is_no_runs_finds_nothing(word: str) -> None:
    assert names_of(word, OURS) == []
