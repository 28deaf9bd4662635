"""Django settings: the ORM broker, tuned for many small jobs."""

from benchmarks.peers.django_side import django_basics

Q_CLUSTER = {
    "name": "peer",
    "orm": "default",
    "workers": 2,
    "bulk": 100,
    "queue_limit": 200,
    "poll": 0.02,
    "timeout": 60,
    "retry": 120,
    "recycle": 100_000,
    "save_limit": 0,  # all results are kept, as the others do: nothing is deleted meanwhile
    "scheduler": False,
    "log_level": "WARNING",
}
globals().update(django_basics("django_q"))
