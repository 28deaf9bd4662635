-- Enqueue: the wide job row, and the narrow row that says where it waits. One statement, so that
-- it is atomic without a transaction of its own. An id that is there already adds nothing.
-- Plan: function scan of the arrays; three inserts.
WITH incoming AS (
    SELECT *
    FROM unnest(
        %(id)s::uuid[], %(task)s::varchar[], %(queue)s::varchar[], %(priority)s::smallint[],
        %(package)s::bytea[], %(enqueued_at)s::float8[], %(run_after)s::float8[],
        %(due_us)s::bigint[]
    ) AS job (id, task, queue, priority, package, enqueued_at, run_after, due_us)
),
added AS (
    INSERT INTO stoker_job (
        id, task, queue, priority, package, enqueued_at, run_after, attempts, worker_id, reason
    )
    SELECT id, task, queue, priority, package, to_timestamp(enqueued_at), to_timestamp(run_after),
           0, '', ''
    FROM incoming
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),
to_wait AS (
    INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes)
    SELECT incoming.id, incoming.due_us, incoming.queue, -incoming.priority, 0, 0
    FROM incoming JOIN added USING (id)
    WHERE incoming.due_us IS NOT NULL
),
to_run AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes)
    SELECT incoming.id, incoming.queue, -incoming.priority, 0, 0
    FROM incoming JOIN added USING (id)
    WHERE incoming.due_us IS NULL
)
SELECT id FROM added
