"""The states of the imports, read from the results of their jobs."""

from dataclasses import dataclass

from examples.feeds.models import Feed
from examples.feeds.states import state_of

IMPORTED = "imported"
GIVEN_UP = "given up"


@dataclass(frozen=True)
class Outcome:
    """The result of an import, or the expected result."""

    word: str
    entries: int
    attempts: int = 1

    def __str__(self) -> str:
        entries = counted(self.entries, "entry", "entries")
        return f"{self.word} with {entries} at attempt {self.attempts}"


@dataclass(frozen=True)
class Sight:
    """The current state of a feed."""

    outcome: Outcome
    is_over: bool
    error: str

    @property
    def row(self) -> tuple[str, str]:
        """Return a word, and details."""
        outcome = self.outcome
        if outcome.word == IMPORTED:
            at_last = f" at attempt {outcome.attempts}" if outcome.attempts > 1 else ""
            return outcome.word, counted(outcome.entries, "entry", "entries") + at_last
        return outcome.word, self.error


class Looker:
    """Reads the states of feeds. Feeds whose import has ended are not read again."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        """Address -> name in the output."""
        self._over: dict[int, Sight] = {}

    def look(self) -> dict[str, Sight]:
        """Return name -> state of every feed, in the order in which they were added."""
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
    # Counted afterwards, so that the entries of an ended import are stored.
    entries = feed.entries.count()
    return Sight(Outcome(state.word, entries, state.attempts), state.is_over, state.error)
