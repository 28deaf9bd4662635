"""Django settings."""

from benchmarks.peers.django_side import django_settings

globals().update(django_settings("django_ox", "django_ox.backend.OxBackend", {}))
