"""What can be seen of the imports, from outside of the cluster."""

from dataclasses import dataclass

from examples.feeds.models import Feed
from examples.feeds.states import state_of

IMPORTED = "imported"
GIVEN_UP = "given up"


@dataclass(frozen=True)
class Outcome:
    """What came of a feed, or must."""

    word: str
    entries: int
    attempts: int = 1

    def __str__(self) -> str:
        entries = counted(self.entries, "entry", "entries")
        return f"{self.word} with {entries} at attempt {self.attempts}"


@dataclass(frozen=True)
class Sight:
    """A feed as it is at this moment."""

    outcome: Outcome
    is_over: bool
    error: str

    @property
    def row(self) -> tuple[str, str]:
        """A word, and what else there is to say."""
        outcome = self.outcome
        if outcome.word == IMPORTED:
            at_last = f" at attempt {outcome.attempts}" if outcome.attempts > 1 else ""
            return outcome.word, counted(outcome.entries, "entry", "entries") + at_last
        return outcome.word, self.error


class Looker:
    """Looks at feeds; what is over is not asked about again."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        """Address -> what it is called here."""
        self._over: dict[int, Sight] = {}

    def look(self) -> dict[str, Sight]:
        """Name -> how it is going, for every feed, in the order they were added in."""
        seen = {}
        for feed in Feed.objects.order_by("pk"):
            sight = self._over.get(feed.pk) or _look_at(feed)
            if sight.is_over:
                self._over[feed.pk] = sight
            seen[self.name_of(feed.url)] = sight
        return seen

    def name_of(self, url: str) -> str:
        return self._names.get(url) or url.rpartition("://")[2]


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _look_at(feed: Feed) -> Sight:
    state = state_of(feed)
    # Counted afterwards: what an import that is over has stored is there by now.
    entries = feed.entries.count()
    return Sight(Outcome(state.word, entries, state.attempts), state.is_over, state.error)
