"""A project that comes from Celery: ``before.py`` has its tasks as they were."""
