"""Array literals in PostgreSQL's syntax."""

from uuid import UUID

import pytest

from stoker.store.written import array_literal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("values", "literal"),
    [
        ([], "{}"),
        ([None, None], "{NULL,NULL}"),
        ([1, None, -3], "{1,NULL,-3}"),
        ([None, 1.5, 1763690000.123456], "{NULL,1.5,1763690000.123456}"),
        (["mail", ""], '{"mail",""}'),
        (["NULL", "a,b", "{}"], '{"NULL","a,b","{}"}'),
        (
            ['say "no"', "back\\slash", "two\nlines"],
            '{"say \\"no\\"","back\\\\slash","two\nlines"}',
        ),
        ([b"\xf5J", b"", None], '{"\\\\xf54a","\\\\x",NULL}'),
        ([UUID(int=255)], "{000000000000000000000000000000ff}"),
    ],
)
def test_array_literal_has_postgresqls_syntax(values: list[object], literal: str) -> None:
    assert array_literal(values) == literal
