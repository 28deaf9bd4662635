-- Record jobs that a broker outside the database has delivered and that have no row yet, each with its
-- end. A job without a status is tried again, so its row says nothing about this attempt. Returns the
-- jobs that have a row already, or that carry on a dead letter: nothing is changed for them.
-- Who adds one of these at the same time is waited for; all add in the order of the ids, so that no
-- two wait for each other.
-- Plan: function scan of the arrays, each id looked up in stoker_requeue by its primary key, sorted;
-- one insert; the ids with a hashed subplan of what it says.
WITH added AS (
    INSERT INTO stoker_job (
        id, task, queue, priority, package, enqueued_at,
        status, attempts, worker_id, started_at, finished_at, value, reason
    )
    SELECT id, task, queue, priority, package,
           to_timestamp(0) + enqueued_us * interval '1 microsecond', status,
           CASE WHEN status IS NULL THEN 0 ELSE attempts END,
           CASE WHEN status IS NULL THEN '' ELSE worker_id END,
           to_timestamp(0) + CASE WHEN status IS NOT NULL THEN started_us END * interval '1 microsecond',
           to_timestamp(0) + CASE WHEN status IS NOT NULL THEN finished_us END * interval '1 microsecond',
           value, reason
    FROM unnest(
        %(id)s::uuid[], %(task)s::varchar[], %(queue)s::varchar[], %(priority)s::smallint[],
        %(package)s::bytea[], %(enqueued_us)s::bigint[], %(status)s::varchar[],
        %(attempts)s::smallint[], %(worker_id)s::varchar[], %(started_us)s::bigint[],
        %(finished_us)s::bigint[], %(value)s::bytea[], %(reason)s::varchar[]
    ) AS job (
        id, task, queue, priority, package, enqueued_us, status, attempts, worker_id, started_us,
        finished_us, value, reason
    )
    WHERE NOT EXISTS (SELECT FROM stoker_requeue AS requeue WHERE requeue.job_id = job.id)
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT id FROM unnest(%(id)s::uuid[]) AS given (id)
WHERE id NOT IN (SELECT id FROM added)
