"""Durable onboarding: a process that takes days and outlives restarts."""
