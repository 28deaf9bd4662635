"""What no visitor should have to wait for."""

import httpx
from django.db import OperationalError, transaction
from django.utils import timezone

from stoker import Cancel, LockBusy, Snooze, TaskTimeout, exponential, lock, task

from .models import Entry, Feed
from .parsing import NotAFeed, parse


class FeedUnavailable(Exception):
    """The server cannot give us the feed now. It may later."""


@task(
    max_attempts=4,
    backoff=exponential(base=2, cap=600),  # about 2, 4 and 8 seconds
    timeout=60,  # for a whole attempt: the one below starts again with every byte
    retry_on=(httpx.TransportError, FeedUnavailable, OperationalError, TaskTimeout),
    give_up_on=(NotAFeed, httpx.UnsupportedProtocol),
)
def import_feed(feed_id: int) -> int:
    """Fetch a feed and store its entries. Returns how many of them we have now.

    Run twice it does no harm: entries that are there stay as they are. Run twice at once it would
    ask the same server for the same thing.
    """
    try:
        with lock(f"import feed {feed_id}"):
            return import_now(feed_id)
    except LockBusy:
        raise Snooze(10) from None  # not Cancel: who has the lock may have died with it


def import_now(feed_id: int) -> int:
    feed = Feed.objects.filter(pk=feed_id).first()
    if feed is None:
        raise Cancel("The feed was deleted in the meantime.")
    response = fetch(feed.url)
    content_type = response.headers.get("content-type", "")
    parsed = parse(response.content, content_type, str(response.url))

    # The slow part is over: a transaction that waits for a network holds up everybody else.
    with transaction.atomic():
        for entry in parsed.entries:
            entry.feed = feed
        Entry.objects.bulk_create(parsed.entries, ignore_conflicts=True)
        feed.title = parsed.title
        feed.imported_at = timezone.now()
        feed.save(update_fields=["title", "imported_at"])
    return feed.entries.count()


def fetch(url: str) -> httpx.Response:
    headers = {"User-Agent": "feed importer (an example of Stoker)"}
    response = httpx.get(url, headers=headers, follow_redirects=True, timeout=10)
    answer = f"The server answered {response.status_code} {response.reason_phrase}."
    if response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise FeedUnavailable(answer)
    if not response.is_success:
        raise NotAFeed(answer)
    return response
