"""Small projects, each of which shows one thing: ``python -m examples.small.shop``."""
