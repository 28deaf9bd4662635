"""A crash checker: real clusters, real faults, and a ledger outside the queue's database.

It uses only Stoker's public API and command line, not its tables. See
docs/explanation/crash-report.md.
"""
