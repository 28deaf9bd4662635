"""Guards and locks on real stores, with processes that are killed and paused."""
