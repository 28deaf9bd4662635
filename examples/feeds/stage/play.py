"""The demo from its start to its end."""

import os
import re
import secrets
import sys
import time
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import httpx
from django.contrib.auth.models import User

from . import verdict
from .processes import (
    MANAGE,
    ROOT,
    STOP_SECONDS,
    Died,
    Interrupted,
    Interruption,
    Process,
)
from .sample_server import SampleServer
from .sights import GIVEN_UP, IMPORTED, Looker, Sight, counted
from .terminal import Progress

START_SECONDS = 60.0
IMPORT_SECONDS = 120.0
LOOK_SECONDS = 0.2
USER = "demo"
ANY_PORT = 0


class Stuck(Exception):
    """The demo cannot continue."""


class Play:
    """One run of the demo."""

    def __init__(self, folder: Path, interruption: Interruption, *, feeds: list[str]) -> None:
        self.folder = folder
        self.interruption = interruption
        self.feeds = feeds
        self.is_about_samples = not feeds
        self.looker = Looker({})
        self.progress = Progress()
        self.processes: list[Process] = []
        self.patience_seconds = STOP_SECONDS

    def perform(self, *, is_once: bool) -> int:
        """Run the demo, and stop everything afterwards. Return the exit code."""
        try:
            with ExitStack() as stack:
                stack.callback(self.stop)
                try:
                    return self.all_acts(stack, is_once=is_once)
                except (Died, Stuck):
                    self.patience_seconds = 10.0  # with what may well be stuck, too
                    raise
        except (Died, Stuck) as trouble:
            say(f"\n{trouble}")
            return 1
        except Interrupted:
            return 130 if is_once else 0

    def all_acts(self, stack: ExitStack, *, is_once: bool) -> int:
        """Run the steps in order. Return the exit code, or raise Interrupted."""
        self.set_up(stack)
        page = self.start()
        self.add_feeds(page)
        self.watch_imports(IMPORT_SECONDS if is_once else None)
        self.tell()
        if is_once:
            return self.judge()
        self.tell_where_to_look(page)
        show_in_browser(f"{page}stoker/")
        return self.stay()

    # -- the acts ---------------------------------------------------------------------------------

    def set_up(self, stack: ExitStack) -> None:
        """Create the database, and choose the feeds to import."""
        migration = self.run("migration", "migrate", "--verbosity=0")
        until = time.monotonic() + START_SECONDS
        while migration.exit_code is None:
            self.interruption.pause(LOOK_SECONDS)
            self.refuse_later_than(until, "The migration of the database has not ended")
        if migration.exit_code:
            migration.check()
        self.processes.remove(migration)
        if self.is_about_samples:
            server = stack.enter_context(SampleServer())
            self.feeds = server.urls()
            self.looker = Looker({url: url.rpartition("/")[2] for url in self.feeds})
            say(f"The sample feeds are served on {server.url('')}.")

    def start(self) -> str:
        """Start the web server and the cluster. Return the address of the page."""
        self.run("cluster", "stoker", "run", "--workers=2")
        page = self.start_web_server(8000) or self.start_web_server(ANY_PORT)
        if page is None:
            raise self.stuck("There is no free port on 127.0.0.1.")
        say(f"The web server runs on {page} and the cluster has two workers.")
        return page

    def start_web_server(self, port: int) -> str | None:
        """Return the web server's address once it listens, or None if another program has the
        port."""
        web = self.run("web server", "runserver", "--noreload", f"127.0.0.1:{port}")
        until = time.monotonic() + START_SECONDS
        while not (address := re.search(r"http://127\.0\.0\.1:\d+/", web.told())):
            try:
                self.wait()
            except Died:
                if "port is already in use" not in web.told():
                    raise
                self.processes.remove(web)
                return None
            self.refuse_later_than(until, "The web server does not start")
        return address.group()

    def add_feeds(self, page: str) -> None:
        """Add the feeds as a visitor does, with the form on the page."""
        say(f"Adding {counted(len(self.feeds), 'feed', 'feeds')} through the form on that page.\n")
        try:
            with httpx.Client(trust_env=False, timeout=10) as visitor:
                visitor.get(page).raise_for_status()
                for url in self.feeds:
                    self.interruption.pause(0)
                    self.add(url, visitor, page)
                    self.show()
        except httpx.HTTPError as error:
            self.wait()  # the reason may be that a process has died
            raise self.stuck(f"A feed could not be added: {error!r}") from error

    def add(self, url: str, visitor: httpx.Client, page: str) -> None:
        """Fill in the form, and send it."""
        form = {"url": url, "csrfmiddlewaretoken": visitor.cookies["csrftoken"]}
        answer = visitor.post(page, data=form)
        if answer.is_server_error:
            answer.raise_for_status()
        if not answer.is_redirect:
            say(f"  {url} was refused: it is no address of the web, or there twice.")
            self.progress.begin_below()

    def watch_imports(self, seconds: float | None) -> None:
        """Show the progress until all imports have ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while late := [name for name, sight in self.show().items() if not sight.is_over]:
            self.wait()
            if until is not None:
                self.refuse_later_than(until, f"These imports are not over: {', '.join(late)}")

    def stay(self) -> NoReturn:
        """Show the progress of feeds that are added now, until Ctrl-C."""
        self.progress.leave()
        while True:
            self.show()
            self.wait()

    def stop(self) -> None:
        """Stop the processes in reverse order of their start: first those that enqueue jobs."""
        if self.interruption.count:
            say("\nStopping: imports that run may finish. Ctrl-C once more ends them, too.")
        for process in reversed(self.processes):
            process.stop(self.interruption, self.patience_seconds)

    # -- results ----------------------------------------------------------------------------------

    def tell(self) -> None:
        """Print the results."""
        seen = self.looker.look()
        imported = {name: sight for name, sight in seen.items() if sight.outcome.word == IMPORTED}
        entries = sum(sight.outcome.entries for sight in imported.values())
        of_feeds = counted(len(imported), "feed", "feeds")
        say(f"\nImported {counted(entries, 'entry', 'entries')} of {of_feeds}.")
        tell_of("Retried, and imported in the end", imported, least_attempts=2)
        given_up = {name: sight for name, sight in seen.items() if sight.outcome.word == GIVEN_UP}
        tell_of("Not imported, and kept as dead letters", given_up)

    def tell_where_to_look(self, page: str) -> None:
        """Print what the user can do next."""
        password = secrets.token_urlsafe(9)
        User.objects.create_superuser(USER, password=password)
        database = self.folder / "feeds.sqlite3"
        say("\nWhere to look:")
        say(f"  the page      {page} (add a feed of your own)")
        say(f"  the dashboard {page}stoker/ (sign in as {USER}, with the password {password})")
        say(f"  the queue     FEEDS_DATABASE={database} {command('stoker', 'info')}")
        for process in self.processes:
            say(f"  the log       {process.log}")
        say("\nCtrl-C stops the web server and the cluster.\n")

    def judge(self) -> int:
        """Print complaints. Return the exit code: 0 if all results are right."""
        outcomes = {name: sight.outcome for name, sight in self.looker.look().items()}
        if self.is_about_samples:
            complaints = verdict.complaints_about_samples(outcomes)
        else:
            asked = {self.looker.name_of(url) for url in self.feeds}
            complaints = verdict.complaints_about_others(outcomes, asked)
        complaints += verdict.complaints_about_records()
        if not complaints:
            say("\nAll is as it must be: every job is recorded once, and no entry is there twice.")
            return 0
        say("\nThis is not as it must be:")
        for complaint in complaints:
            say(f"  {complaint}")
        return 1

    # -- helpers -----------------------------------------------------------------------------------

    def run(self, name: str, *arguments: str) -> Process:
        """Start a command of the project."""
        log = self.folder / f"{name.replace(' ', '-')}.log"
        process = Process(name, arguments, log)
        self.processes.append(process)
        return process

    def show(self) -> dict[str, Sight]:
        """Update the screen."""
        seen = self.looker.look()
        self.progress.show({name: sight.row for name, sight in seen.items()})
        return seen

    def wait(self) -> None:
        """Wait for a moment, and check that all processes still run."""
        self.interruption.pause(LOOK_SECONDS)
        for process in self.processes:
            process.check()

    def refuse_later_than(self, until: float, sentence: str) -> None:
        """Raise Stuck if the time is over."""
        if time.monotonic() > until:
            raise self.stuck(f"This takes too long. {sentence}.")

    def stuck(self, sentence: str) -> Stuck:
        """Return the message with the last lines of all logs."""
        logs = [f"The end of {one.log}:\n{one.last_words()}" for one in self.processes]
        return Stuck("\n".join([sentence, *logs]))


def tell_of(heading: str, seen: dict[str, Sight], least_attempts: int = 1) -> None:
    """Return a line for each feed, with the reason."""
    told = {n: sight for n, sight in seen.items() if sight.outcome.attempts >= least_attempts}
    if told:
        say(f"{heading}:")
    for name, sight in told.items():
        attempts = counted(sight.outcome.attempts, "attempt", "attempts")
        say(f"  {name}: {attempts}. {sight.error}")


def show_in_browser(address: str) -> None:
    """Open the address in a browser if there is a desktop. A browser in the terminal would hide the
    output."""
    has_desktop = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if sys.stdout.isatty() and has_desktop:
        webbrowser.open(address)


def say(sentence: str) -> None:
    print(sentence, flush=True)


def command(*arguments: str) -> str:
    """Return the command as it can be pasted into a terminal."""
    return " ".join([".venv/bin/python", str(MANAGE.relative_to(ROOT)), *arguments])
