"""Stands for ``django_q`` in the migrations of a project that has moved over: those that depend on
it, have a foreign key to its tables or fill them still run, without Django Q.
"""
