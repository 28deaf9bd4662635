"""Replacement for ``django_q`` in migrations of a project that has moved to Stoker.

Migrations that depend on Django Q, have foreign keys to its tables or fill them still run without
it.
"""
