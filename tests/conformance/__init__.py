"""One suite that every broker passes: the contract of stoker/brokers/contract.py, line by line.

A broker joins by one entry in `stands.py`. What it does not claim in its capabilities is skipped.
"""
