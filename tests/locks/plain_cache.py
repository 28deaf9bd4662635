"""A third-party cache that has an atomic `add` and no other atomic operation."""

from __future__ import annotations

from typing import Any

from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.redis import RedisCache


class PlainCache(BaseCache):
    """Django's Redis cache, reduced to the methods that every cache has."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._inside = RedisCache(server, params)
        for verb in ("get", "set", "delete"):
            setattr(self, verb, getattr(self._inside, verb))

    def add(self, *arguments: Any, **named: Any) -> Any:
        return self._inside.add(*arguments, **named)

    def touch(self, *arguments: Any, **named: Any) -> Any:
        return self._inside.touch(*arguments, **named)
