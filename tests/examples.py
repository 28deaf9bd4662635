"""How many random examples a test tries."""

import os


def examples(many: int = 100) -> int:
    """Return this number in `make test-all`, and a quarter of it elsewhere: there are many runs."""
    return many if os.environ.get("STOKER_TEST_EXAMPLES") else many // 4
