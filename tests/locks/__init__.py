"""Locks on every store that keeps them, with processes that are killed and paused."""
