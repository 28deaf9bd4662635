"""Django Q's API on Stoker.

A project of Django Q or Django Q 2 changes ``django_q`` to ``stoker.contrib.django_q`` in its
imports and in ``INSTALLED_APPS``, and keeps ``Q_CLUSTER``.
"""
