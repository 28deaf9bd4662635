-- Enqueue one job that may run now, and whose id nobody else can have: two plain inserts, sent together
-- and so one transaction, which the planner is done with sooner than with one statement for both.
-- Plan: two inserts.
INSERT INTO stoker_job (
    id, task, queue, priority, package, enqueued_at, attempts, worker_id, reason
)
VALUES (
    %(id)s, %(task)s, %(queue)s, %(priority)s, %(package)s,
    to_timestamp(0) + %(enqueued_us)s * interval '1 microsecond', 0, '', ''
);
INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
VALUES (%(id)s, %(queue)s, %(rank)s, 0, 0, 0)
