"""Guards: unique jobs, locks, limits, rates and sequences."""
