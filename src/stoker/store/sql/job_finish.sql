-- Record how jobs ended. The arrays are in subqueries for the reason given in claimed_ack.sql.
-- Plan: nested loop from the arrays over the primary key of stoker_job.
UPDATE stoker_job AS job
SET status = ended.status,
    attempts = ended.attempts,
    worker_id = ended.worker_id,
    started_at = to_timestamp(0) + ended.started_us * interval '1 microsecond',
    finished_at = to_timestamp(0) + ended.finished_us * interval '1 microsecond',
    value = ended.value,
    reason = ended.reason
FROM unnest(
    (SELECT %(id)s::uuid[]), (SELECT %(status)s::varchar[]),
    (SELECT %(attempts)s::smallint[]), (SELECT %(worker_id)s::varchar[]),
    (SELECT %(started_us)s::bigint[]), (SELECT %(finished_us)s::bigint[]),
    (SELECT %(value)s::bytea[]), (SELECT %(reason)s::varchar[])
) AS ended (id, status, attempts, worker_id, started_us, finished_us, value, reason)
WHERE job.id = ended.id
RETURNING job.id
