"""The parts of a page that may change while it is open, for the script that updates them.

The script sends a digest of each part that it has, and receives only the parts that differ.
Relative times and CSRF tokens are ignored.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re

from django.http import HttpRequest, HttpResponse

LIVE = "X-Stoker-Live"
"""The request header with the digests: ``found=0a1b2c3d,states=4e5f6a7b``."""
OPENING = re.compile(r'<(\w+) [^>]*?\bid="([\w-]+)"[^>]*?\bdata-live\b[^>]*>')
AGES = re.compile(r"(<time [^>]*>)[^<]*")
TOKENS = re.compile(r'(name="csrfmiddlewaretoken" value=)"[^"]*"')
NEW = re.compile(r' data-new="(\d+)"')
"""Finds the number of rows that are newer than the first row that the script shows."""
DIGITS = 8
LEAST_BYTES = 500
"""Smaller answers are not compressed."""


def parts_of(page: str) -> dict[str, str]:
    """Return id -> element, for the elements of a page that are marked with ``data-live``."""
    found = {}
    for opening in OPENING.finditer(page):
        name, part_id = opening.groups()
        depth, end = 0, len(page)
        for tag in re.compile(rf"<(/?){name}\b").finditer(page, opening.start()):
            depth += -1 if tag[1] else 1
            if depth == 0:
                end = page.index(">", tag.end()) + 1
                break
        found[part_id] = page[opening.start() : end]
    return found


def digest_of(part: str) -> str:
    """Return a digest of the visible content of a part."""
    text = NEW.sub("", TOKENS.sub(r"\1", AGES.sub(r"\1", part)))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def changes(request: HttpRequest, page: str, status: int) -> HttpResponse:
    """Return the parts of the page that the script does not have, as JSON.

    ``parts`` contains the digest of each part, and its HTML if the script has another version.
    ``new`` is the number of newer rows; null = the server does not count them.
    """
    known = dict(one.split("=", 1) for one in request.headers[LIVE].split(",") if "=" in one)
    parts = {}
    for part_id, part in parts_of(page).items():
        digest = digest_of(part)
        parts[part_id] = [digest] if known.get(part_id) == digest else [digest, part]
    new = NEW.search(page)
    body = json.dumps({"parts": parts, "new": int(new[1]) if new else None}).encode()
    response = HttpResponse(content_type="application/json", status=status)
    if len(body) > LEAST_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        # CSRF tokens are masked differently in each response, so its size does not reveal them.
        body = gzip.compress(body, 6)
        response.headers["Content-Encoding"] = "gzip"
    response.content = body
    response.headers["Content-Length"] = str(len(body))
    response.headers["Vary"] = "Accept-Encoding"
    return response
