-- Enqueue jobs: insert the wide job rows, and a ready or deferred row for each. It is one
-- statement, and so atomic without a transaction. Existing ids are skipped.
-- Plan: function scan of the arrays; three inserts.
WITH incoming AS (
    SELECT *
    FROM unnest(
        %(id)s::uuid[], %(task)s::varchar[], %(queue)s::varchar[], %(priority)s::smallint[],
        %(package)s::bytea[], %(enqueued_us)s::bigint[], %(run_after_us)s::bigint[],
        %(due_us)s::bigint[], %(guards)s::smallint[]
    ) AS job (
        id, task, queue, priority, package, enqueued_us, run_after_us, due_us, guards
    )
),
added AS (
    INSERT INTO stoker_job (
        id, task, queue, priority, package, enqueued_at, run_after, attempts, worker_id, reason
    )
    SELECT id, task, queue, priority, package,
           to_timestamp(0) + enqueued_us * interval '1 microsecond',
           to_timestamp(0) + run_after_us * interval '1 microsecond', 0, '', ''
    FROM incoming
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),
to_wait AS (
    INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes, guards)
    SELECT incoming.id, incoming.due_us, incoming.queue, -incoming.priority, 0, 0, incoming.guards
    FROM incoming JOIN added USING (id)
    WHERE incoming.due_us IS NOT NULL
),
to_run AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
    SELECT incoming.id, incoming.queue, -incoming.priority, 0, 0, incoming.guards
    FROM incoming JOIN added USING (id)
    WHERE incoming.due_us IS NULL
)
SELECT id FROM added
