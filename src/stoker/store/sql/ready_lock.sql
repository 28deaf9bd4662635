-- Lock ready jobs in the order of their start, and skip jobs that other transactions have locked
-- (PostgreSQL).
-- Plan: primary key, once for each job.
SELECT ready.job_id, ready.queue, ready.rank, ready.attempts, ready.crashes, ready.guards
FROM stoker_ready AS ready
WHERE ready.job_id {among}
ORDER BY ready.rank, ready.job_id
FOR UPDATE SKIP LOCKED
