"""Tests of stoker.testing, which ships to users."""
