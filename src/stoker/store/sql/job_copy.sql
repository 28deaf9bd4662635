-- Enqueue many jobs: insert the wide rows as binary rows of COPY. Their ids are new; an existing id
-- is an error. The columns that differ between the jobs come first.
COPY stoker_job (
    id, package, task, queue, priority, enqueued_at, run_after, attempts, worker_id, reason
) FROM STDIN (FORMAT BINARY)
