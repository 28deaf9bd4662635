"""Imports that the fork server loads once, before it forks the other processes."""

import django

django.setup()

import tests.guards.hammer  # noqa: E402 - its models need Django
import tests.guards.holder  # noqa: E402, F401 - as above
