"""Logs of jobs: the lines that a job logs and prints, kept in the store."""
