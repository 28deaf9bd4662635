"""The pauses between two jobs on an idle cluster."""

import random
from collections.abc import Iterator

SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 0.25


def idle_pauses(count: int) -> Iterator[float]:
    """Irregular, so that they never coincide with a polling interval; the same in each round."""
    chance = random.Random(count)
    for _ in range(count):
        yield chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
