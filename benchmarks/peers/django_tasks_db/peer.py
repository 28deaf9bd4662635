"""django-tasks-db: two workers, each with one job at a time."""

from benchmarks.peers.django_side import DjangoPeer
from benchmarks.peers.side import serve


class DjangoTasksDb(DjangoPeer):
    """See Peer."""

    package = "django-tasks-db"
    title = "django-tasks-db"
    settings = "defaults (it looks once a second when idle), CONN_MAX_AGE"
    delivery = "at most once: a job whose worker was killed stays marked as running"
    concurrency = "2 processes"
    results = "kept"
    folder = "django_tasks_db"
    command = ("db_worker", "--no-startup-delay")
    processes = 2
    unfinished = """
        SELECT 1 FROM django_tasks_database_dbtaskresult
        WHERE status IN ('READY', 'RUNNING') LIMIT 1
    """
    succeeded = """
        SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'
    """


if __name__ == "__main__":
    serve(DjangoTasksDb)
