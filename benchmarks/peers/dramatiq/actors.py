"""The broker and its actors, for the caller and for `dramatiq`."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers import side

URL = os.environ["PEER_REDIS_URL"]
KEEPS = os.environ["PEER_VARIANT"] == "results"

broker = RedisBroker(url=URL)
if KEEPS:
    broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)
OPTIONS = {"store_results": True, "result_ttl": 86_400_000} if KEEPS else {}


def nothing(number: int) -> int:
    return side.nothing(number)


def first_line(began_ns: int) -> int:
    return side.first_line(began_ns)


ACTORS = {one.__name__: dramatiq.actor(**OPTIONS)(one) for one in (nothing, first_line)}
