"""Tests of several parts together, on a real database, without a cluster."""
