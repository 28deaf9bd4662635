"""Where locks are kept: the database, or a cache that can keep one honestly."""
