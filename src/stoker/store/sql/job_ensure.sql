-- Insert the wide rows of jobs that a broker outside the database has delivered, when they end. A
-- row left by an earlier attempt is not changed. Rows are in the order of the ids, so that two
-- transactions with the same jobs cannot deadlock.
-- Plan: function scan of the arrays, sorted; one insert.
INSERT INTO stoker_job (
    id, task, queue, priority, package, enqueued_at, attempts, worker_id, reason
)
SELECT id, task, queue, priority, package,
       to_timestamp(0) + enqueued_us * interval '1 microsecond', 0, '', ''
FROM unnest(
    %(id)s::uuid[], %(task)s::varchar[], %(queue)s::varchar[], %(priority)s::smallint[],
    %(package)s::bytea[], %(enqueued_us)s::bigint[]
) AS job (id, task, queue, priority, package, enqueued_us)
ORDER BY id
ON CONFLICT (id) DO NOTHING
RETURNING id
