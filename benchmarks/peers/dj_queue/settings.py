"""Django settings."""

from benchmarks.peers.django_side import django_settings

OPTIONS = {"workers": [{"queues": "*", "threads": 3, "processes": 2, "polling_interval": 0.1}]}
globals().update(django_settings("dj_queue", "dj_queue.backend.DjQueueBackend", OPTIONS))
