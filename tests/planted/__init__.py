"""Mistakes planted on purpose, each in a copy of the source: does some test notice?"""
