"""What may be done once at a time, on real stores, with processes that are killed and paused."""
