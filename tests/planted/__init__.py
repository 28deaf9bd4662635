"""Mistakes planted on purpose in a copy of the source, to check that a test notices them."""
