"""The name of a lock, as every store can keep it."""

from __future__ import annotations

import hashlib
import re

LONGEST_KEY = 120
"""Memcached takes 250 characters, of which the project's prefix and version are some."""
RESERVED = "stoker:"

# Lower case only: MariaDB holds "Feed" and "feed" for the same. No blanks: memcached cannot have
# them. No "~": it marks what was hashed, so that no name can be the key of another.
_SAFE = re.compile(r"[!-@\[-`a-}]+")
_UNSAFE = re.compile(r"[^!-@\[-`a-}]+")
_SEEN_OF_NAME = 60


def key_of(name: str) -> str:
    """A key of at most ``LONGEST_KEY`` characters, different for every name: the name itself where
    that is safe anywhere, else its beginning and a hash of all of it."""
    if len(name) <= LONGEST_KEY and _SAFE.fullmatch(name):
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return f"{_UNSAFE.sub('_', name.lower())[:_SEEN_OF_NAME]}~{digest}"


def refuse_bad_name(name: object) -> None:
    """Raises TypeError or ValueError for what cannot be the name of a lock."""
    if not isinstance(name, str):
        raise TypeError(
            f"The name of a lock is a string, but this is {name!r}. "
            "Put what tells one lock from another into it, as in f'feed:{feed_id}'."
        )
    if not name:
        raise ValueError("A lock needs a name, and this one is empty.")
    if name.startswith(RESERVED):
        raise ValueError(f"The lock {name!r} is Stoker's own: begin the name with another word.")
