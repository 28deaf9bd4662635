"""A crash checker: real clusters, real faults, and a ledger outside of the queue's database.

It knows Stoker's public API and command line, and none of its tables. See
docs/explanation/crash-report.md.
"""
