"""Stores that an older version made: their tables, and the jobs that wait in them."""
