-- Enqueue one job that is due and whose id is certainly new. Like job_add_fresh.sql as one
-- statement, which a session keeps prepared. Its parameters have the types of their columns.
-- Plan: two inserts.
WITH placed AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
    VALUES (%(id)s::uuid, %(queue)s, %(rank)s, 0, 0, 0)
)
INSERT INTO stoker_job (
    id, task, queue, priority, package, enqueued_at, attempts, worker_id, reason
)
VALUES (
    %(id)s::uuid, %(task)s, %(queue)s, %(priority)s, %(package)s, %(enqueued_at)s, 0, '', ''
)
