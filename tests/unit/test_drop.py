"""After a test run only its own databases are dropped."""

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


def test_databases_of_the_run_are_found() -> None:
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
def test_databases_of_others_are_not_found(name: str) -> None:
    assert names_of("123x0a1b", [name]) == []


@pytest.mark.parametrize("word", ["", "test", "default", "queue", "stoker", ".*", "postgres"])
def test_invalid_run_word_finds_nothing(word: str) -> None:
    assert names_of(word, OURS) == []
