"""Work that is too slow for a web request."""

import httpx
from django.db import OperationalError, transaction
from django.utils import timezone

from stoker import Cancel, LockBusy, Snooze, TaskTimeout, exponential, lock, task

from .models import Entry, Feed
from .parsing import NotAFeed, parse


class FeedUnavailable(Exception):
    """The server cannot deliver the feed now, but may do so later."""


@task(
    max_attempts=4,
    backoff=exponential(base=2, cap=600),  # about 2, 4 and 8 seconds
    timeout=60,  # for a whole attempt; the time-out of the request starts again with every byte
    retry_on=(httpx.TransportError, FeedUnavailable, OperationalError, TaskTimeout),
    give_up_on=(NotAFeed, httpx.UnsupportedProtocol),
)
def import_feed(feed_id: int) -> int:
    """Fetch a feed and store its entries. Return their number.

    It is safe to run twice, because existing entries are not changed. The lock prevents two
    requests to the same server at once.
    """
    try:
        with lock(f"import feed {feed_id}"):
            return import_now(feed_id)
    except LockBusy:
        raise Snooze(10) from None  # not Cancel: the holder of the lock may have died with it


def import_now(feed_id: int) -> int:
    feed = Feed.objects.filter(pk=feed_id).first()
    if feed is None:
        raise Cancel("The feed was deleted in the meantime.")
    response = fetch(feed.url)
    content_type = response.headers.get("content-type", "")
    parsed = parse(response.content, content_type, str(response.url))

    # The slow part is over: a transaction that waits for the network would delay all others.
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
