"""A project that comes from Django Q: the same code, with another import."""
