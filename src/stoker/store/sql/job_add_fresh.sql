-- Enqueue one job that is due and whose id is certainly new: two plain inserts, sent together and
-- so in one transaction. They take less planning than one statement for both, and a literal moment
-- less than a calculation.
-- Plan: two inserts.
INSERT INTO stoker_job (
    id, task, queue, priority, package, enqueued_at, attempts, worker_id, reason
)
VALUES (
    %(id)s, %(task)s, %(queue)s, %(priority)s, %(package)s, %(enqueued_at)s, 0, '', ''
);
INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
VALUES (%(id)s, %(queue)s, %(rank)s, 0, 0, 0)
