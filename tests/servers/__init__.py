"""Servers for the tests: found running, or started for the tests alone. Standard library only."""
