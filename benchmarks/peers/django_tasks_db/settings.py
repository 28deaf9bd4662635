"""Django settings."""

from benchmarks.peers.django_side import django_settings

globals().update(django_settings("django_tasks_db", "django_tasks_db.DatabaseBackend", {}))
