"""Durable onboarding: a process of days that outlives every restart."""
