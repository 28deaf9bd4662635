-- Enqueue many jobs: the wide rows, as binary rows of COPY. Their ids are fresh: one that is there
-- already is an error. The columns that differ come first.
COPY stoker_job (
    id, package, task, queue, priority, enqueued_at, run_after, attempts, worker_id, reason
) FROM STDIN (FORMAT BINARY)
