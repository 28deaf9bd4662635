"""Convert the answer of a server into entries. Uses no network and no database."""

import calendar
import hashlib
from datetime import UTC, datetime
from html import unescape
from typing import NamedTuple
from urllib.parse import urljoin

import feedparser
from django.utils.html import strip_tags
from feedparser import FeedParserDict

from .models import Entry


class NotAFeed(Exception):
    """There is no feed at this address, so a retry would not help."""


class ParsedFeed(NamedTuple):
    title: str
    entries: list[Entry]
    """An entry of a feed that is not saved yet."""


def parse(content: bytes, content_type: str, url: str) -> ParsedFeed:
    """Read RSS or Atom, in any version and encoding, and even if it is not quite valid."""
    parsed = feedparser.parse(content, response_headers={"content-type": content_type})
    if not parsed.version:
        raise NotAFeed("What is at this address is neither RSS nor Atom.")
    title = plain_text(parsed.feed.get("title", ""))[:200]
    return ParsedFeed(title, [entry_from(item, url) for item in parsed.entries])


def entry_from(item: FeedParserDict, url: str) -> Entry:
    title = plain_text(item.get("title", ""))
    link = urljoin(url, item.get("link", ""))
    return Entry(
        guid=guid_of(item),
        title=title[:300] or "Untitled",
        # The page shows it as a link, so refuse `javascript:` and similar schemes.
        link=link if link.startswith(("https://", "http://")) and item.get("link") else "",
        published=moment_of(item),
    )


def guid_of(item: FeedParserDict) -> str:
    """Return what distinguishes this entry from others of its feed, each time the feed is read."""
    guid: str = item.get("id") or item.get("link") or ""
    if guid and len(guid) <= 255:
        return guid
    words = guid or item.get("title", "") + item.get("summary", "")
    return hashlib.sha256(words.encode()).hexdigest()


def plain_text(html: str) -> str:
    return " ".join(unescape(strip_tags(html)).split())


def moment_of(item: FeedParserDict) -> datetime | None:
    """Return a date in UTC, or None if feedparser could not read it."""
    for key in ("published_parsed", "updated_parsed"):
        # item.get() may return the other date, and warns about it.
        if parsed := dict.get(item, key):
            return datetime.fromtimestamp(calendar.timegm(parsed), UTC)
    return None
