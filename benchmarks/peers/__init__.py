"""Stoker next to other queues, in one run: `make bench PEERS="pgqueuer procrastinate"`."""
