"""What the process that others are forked from loads once, before any of them."""

import django

django.setup()

import tests.guards.hammer  # noqa: E402 - its models need Django
import tests.guards.holder  # noqa: E402, F401 - as above
