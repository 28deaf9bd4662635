"""A small Django app whose tasks the tests run."""
