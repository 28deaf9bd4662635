"""One suite that every broker has to pass: the contract in stoker/brokers/contract.py.

A broker joins with one entry in `stands.py`. Tests of capabilities that it lacks are skipped.
"""
