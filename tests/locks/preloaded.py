"""Imports that the fork server loads once, before it forks the other processes."""

import contextlib
import gc
import importlib

import django

django.setup()

import tests.conformance.bare  # noqa: E402 - its models need Django
import tests.conformance.server_stands  # noqa: E402 - as above
import tests.conformance.threads  # noqa: E402 - as above
import tests.locks.hammer  # noqa: E402 - as above
import tests.locks.holder  # noqa: E402, F401 - as above

for client in ("pymemcache", "pylibmc", "redis"):  # Django's caches import them at their first use
    with contextlib.suppress(ImportError):
        importlib.import_module(client)

gc.freeze()  # else the garbage collector would visit all of it in each process
