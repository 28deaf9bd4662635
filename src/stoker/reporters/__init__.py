"""Reporters: listeners that pass events about jobs on to logs, Sentry, Prometheus and others."""
