"""Show pages on a terminal: scroll, choose a line and open it, go back, refresh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone

from stoker.brokers.outage import do_without_broker
from stoker.compat import TaskResultDoesNotExist
from stoker.exceptions import StokerError
from stoker.values.text import first_line_of

from .layout import fit, pad, width_of, wrap
from .terminal import ScreenRow, TerminalScreen

REFUSALS = (StokerError, TaskResultDoesNotExist, DatabaseError, InterfaceError)
EDGE_ROWS = 3
"""The rows above and below the lines of a page: views, title, keys."""
KEYS = (
    ("1 to 5, Tab", "the views; Shift-Tab goes back one"),
    ("j k, arrows", "the next or the previous line"),
    ("PgDn PgUp, Space b", "the next or the previous page"),
    ("g G, Home End", "the first or the last line"),
    ("Enter, right", "open the line: a cluster, a queue, a dead letter, a job"),
    ("Esc q, left", "go back; quit, from a view"),
    ("r", "refresh now"),
    ("? h", "this help"),
    ("Ctrl-C", "quit"),
)
MEANINGS = {
    "j": "down", "k": "up", " ": "page down", "b": "page up", "g": "home", "G": "end", "h": "?",
    "right": "enter", "q": "escape", "left": "escape", "back": "escape",
}  # fmt: skip
"""Key -> another key that does the same."""


@dataclass(frozen=True, eq=False)
class MonitorPage:
    """A page of the monitor. One thread reads its data; another one lays it out as lines."""

    key: tuple[str, ...]
    """Equal for two pages with the same content."""
    title: str
    read: Callable[[], Any]
    lay_out: Callable[[Any, int], Iterable[PageLine]]
    """Returns the lines of the page, given the value that ``read`` returned and the width."""


class PageLine(NamedTuple):
    """A line of a page."""

    text: str
    style: str = ""
    opens: MonitorPage | None = None
    """The page that Enter opens."""


@dataclass(frozen=True)
class Reading:
    """The data that was read for a page, or the error."""

    page: MonitorPage
    taken_at: datetime
    value: Any = None
    error: str = ""
    notice: str = ""
    """What the data lacks, because the broker does not answer."""


class PageReader(threading.Thread):
    """Reads the data of the shown page at regular intervals.

    This is a separate thread, so that the screen responds to keys while the database does not
    answer.
    """

    def __init__(self, interval_seconds: float, hand_over: Callable[[Any], None]) -> None:
        super().__init__(daemon=True, name="reader")
        self._interval_seconds = interval_seconds
        self._hand_over = hand_over
        self._wanted: MonitorPage | None = None
        self._changed = threading.Event()

    def want(self, page: MonitorPage) -> None:
        """Read this page now, and refresh it from then on."""
        self._wanted = page
        self._changed.set()

    def run(self) -> None:
        while True:
            self._changed.clear()
            page = self._wanted
            if page is not None:
                try:
                    self._hand_over(reading_of(page))
                except BaseException as error:  # noqa: BLE001 - raised again by the screen's thread
                    self._hand_over(error)
                    return
            self._changed.wait(self._interval_seconds)


def reading_of(page: MonitorPage) -> Reading:
    """Read the data of a page."""
    try:
        with do_without_broker() as outage:
            value = page.read()
        return Reading(page, timezone.now(), value, notice=outage.sentence)
    except REFUSALS as error:
        connections.close_all()  # the next reading opens new ones
        return Reading(page, timezone.now(), error=first_line_of(error))


@dataclass
class OpenPage:
    """A page on the stack, with the chosen line and the scroll position."""

    page: MonitorPage
    reading: Reading | None = None
    """The last successful reading."""
    problem: str = ""
    """Why the last reading failed, or what it lacks; "" = it is complete."""
    top: int = 0
    chosen: int = 0
    lines: Sequence[PageLine] = field(default_factory=list)

    def lay_out(self, width: int) -> None:
        """Lay the page out for this width. The same thing stays chosen if lines have moved."""
        before = self.choice
        value = None if self.reading is None else self.reading.value
        self.lines = [] if value is None else list(self.page.lay_out(value, width))
        self.chosen = self._place_of(before)

    @property
    def choice(self) -> MonitorPage | None:
        """Return the page that the chosen line opens."""
        return self.lines[self.chosen].opens if self.chosen < len(self.lines) else None

    def _place_of(self, before: MonitorPage | None) -> int:
        at = min(self.chosen, max(0, len(self.lines) - 1))
        if before is not None and ((now := self.choice) is None or now.key != before.key):
            same = (
                n for n, one in enumerate(self.lines) if one.opens and one.opens.key == before.key
            )
            at = next(same, at)
        places = self._places()
        return at if at in places or not places else min(places, key=lambda one: abs(one - at))

    def _places(self) -> list[int]:
        return [at for at, line in enumerate(self.lines) if line.opens is not None]

    def move(self, step: int, height: int) -> None:
        """Choose another line, or scroll if no line can be opened."""
        places = self._places()
        if not places:
            self.top += step
        elif abs(step) == 1:
            at = places.index(self.chosen) + step
            if 0 <= at < len(places):
                self.chosen = places[at]
            else:
                self.top += step * height  # the lines before the first and after the last one
                return
        else:
            goal = self.chosen + step
            self.chosen = min(places, key=lambda at: abs(at - goal))
            self.top += step
        self._reveal(height)

    def _reveal(self, height: int) -> None:
        if self._places():
            self.top = max(min(self.top, self.chosen), self.chosen - height + 1)
            if self.chosen == self._places()[0] and self.chosen < height:
                self.top = 0

    def visible(self, height: int) -> Sequence[PageLine]:
        self.top = max(0, min(self.top, len(self.lines) - height))
        return self.lines[self.top : self.top + height]


class Viewer:
    """The screen of the monitor: a stack of pages, the first of which is one of the views."""

    def __init__(
        self, screen: TerminalScreen, views: Sequence[MonitorPage], interval_seconds: float
    ) -> None:
        self._screen = screen
        self._views = views
        self._stack = [OpenPage(views[0])]
        self._news: list[Reading | BaseException] = []
        self._reader = PageReader(interval_seconds, self._hand_over)

    def run(self) -> None:
        """Show the pages until the user quits.

        Raises:
            Exception: a page cannot be read, and not because of the database.
        """
        self._reader.want(self._stack[-1].page)
        self._reader.start()
        while self._stack:
            self._draw()
            keys = self._screen.keys()
            if keys is None:
                return
            self._take_news()
            for key in keys:
                self._press(MEANINGS.get(key, key))
                if not self._stack:
                    return

    def _hand_over(self, news: Reading | BaseException) -> None:
        self._news.append(news)
        self._screen.wake()

    def _take_news(self) -> None:
        while self._news:
            news = self._news.pop(0)
            if isinstance(news, BaseException):
                raise news
            shown = self._stack[-1]
            if news.page is not shown.page:
                continue  # of a page that was closed meanwhile
            shown.problem = news.notice
            if not news.error:
                shown.reading = news
                continue
            age = " The page shows what was read before." if shown.reading is not None else ""
            shown.problem = f"{news.error.rstrip('.')}.{age}"

    # -- keys -------------------------------------------------------------------------------------

    def _press(self, key: str) -> None:
        shown, height = self._stack[-1], self._height
        steps = {"down": 1, "up": -1, "page down": height - 1, "page up": 1 - height}
        ends = {"home": -len(shown.lines), "end": len(shown.lines)}
        if key in steps or key in ends:
            shown.move((steps | ends)[key], height)
        elif key == "enter" and shown.choice is not None:
            self._open(shown.choice)
        elif key == "escape":
            self._stack.pop()
            self._refresh()
        elif key in ("tab", "back tab"):
            self._turn(1 if key == "tab" else -1)
        elif key.isdigit() and 1 <= int(key) <= len(self._views):
            self._stack = [OpenPage(self._views[int(key) - 1])]
            self._refresh()
        elif key == "?" and shown.page is not HELP:
            self._open(HELP)
        elif key == "r":
            self._refresh()

    def _open(self, page: MonitorPage) -> None:
        self._stack.append(OpenPage(page))
        self._refresh()

    def _turn(self, step: int) -> None:
        at = self._views.index(self._stack[0].page)
        self._stack = [OpenPage(self._views[(at + step) % len(self._views)])]
        self._refresh()

    def _refresh(self) -> None:
        if self._stack:
            self._reader.want(self._stack[-1].page)

    # -- rows -------------------------------------------------------------------------------------

    @property
    def _height(self) -> int:
        problem = self._problem_rows(self._stack[-1])
        return max(1, self._screen.size[1] - EDGE_ROWS - len(problem))

    def _draw(self) -> None:
        width, rows = self._screen.size
        shown, height = self._stack[-1], self._height
        shown.lay_out(width - 2)
        lines = shown.visible(height)
        body = [self._row(shown, shown.top + at, line) for at, line in enumerate(lines)]
        body += [ScreenRow("")] * (height - len(body))
        edges = [self._views_row(width), self._title_row(shown, width)]
        problem = self._problem_rows(shown)
        self._screen.draw([*edges, *problem, *body, self._foot_row(shown, width)][:rows])

    def _row(self, shown: OpenPage, at: int, line: PageLine) -> ScreenRow:
        if line.opens is not None and at == shown.chosen:
            return ScreenRow(f"> {line.text}", "chosen")
        return ScreenRow(f"  {line.text}", line.style)

    def _views_row(self, width: int) -> ScreenRow:
        names = [f"{number} {one.title}" for number, one in enumerate(self._views, 1)]
        at = self._views.index(self._stack[0].page)
        names[at] = f"[{names[at]}]"
        row = "   ".join(names)
        return ScreenRow(row if width_of(row) <= width else " ".join(names), "heading")

    def _title_row(self, shown: OpenPage, width: int) -> ScreenRow:
        taken = "Reading ..."
        if shown.reading is not None:
            taken = f"{timezone.localtime(shown.reading.taken_at):%H:%M:%S}"
        path = " > ".join(one.page.title for one in self._stack)
        room = max(1, width - width_of(taken) - 1)
        return ScreenRow(f"{pad(fit(path, room, keeps_end=True), room)} {taken}", "dim")

    def _problem_rows(self, shown: OpenPage) -> list[ScreenRow]:
        if not shown.problem:
            return []
        return [ScreenRow(line, "bad") for line in wrap(shown.problem, self._screen.size[0])]

    def _foot_row(self, shown: OpenPage, width: int) -> ScreenRow:
        enter = "Enter open  " if shown.choice is not None else ""
        back = "Esc back" if len(self._stack) > 1 else "q quit"
        words = f"? help  j k move  {enter}{back}"
        last = min(shown.top + self._height, len(shown.lines))
        place = f"{shown.top + 1}-{last} of {len(shown.lines)}" if shown.lines else ""
        room = width - width_of(place) - 1
        return ScreenRow(f"{pad(fit(words, room), room)} {place}", "dim")


def _help_lines(_: Any, width: int) -> Iterable[PageLine]:
    for keys, what in KEYS:
        first, *others = wrap(what, max(10, width - 20))
        yield PageLine(f"{keys:<20}{first}")
        yield from (PageLine(" " * 20 + other.strip()) for other in others)


HELP = MonitorPage(("help",), "Help", lambda: "", _help_lines)
