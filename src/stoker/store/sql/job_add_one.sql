-- Enqueue one job. Like job_add.sql without arrays, whose planning takes longer than the inserts.
-- Plan: two inserts; the insert into the third table is skipped by a constant condition.
WITH added AS (
    INSERT INTO stoker_job (
        id, task, queue, priority, package, enqueued_at, run_after, attempts, worker_id, reason
    )
    VALUES (
        %(id)s::uuid, %(task)s, %(queue)s, %(priority)s, %(package)s,
        to_timestamp(0) + %(enqueued_us)s::bigint * interval '1 microsecond',
        to_timestamp(0) + %(run_after_us)s::bigint * interval '1 microsecond', 0, '', ''
    )
    ON CONFLICT (id) DO NOTHING
    RETURNING id, queue, -priority AS rank
),
to_wait AS (
    INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes)
    SELECT id, %(due_us)s::bigint, queue, rank, 0, 0
    FROM added
    WHERE %(due_us)s::bigint IS NOT NULL
)
INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes)
SELECT id, queue, rank, 0, 0
FROM added
WHERE %(due_us)s::bigint IS NULL
RETURNING job_id
