-- Promote: move deferred jobs that are due to ready.
-- The clock advances within a transaction. It is in a subquery so that it is read once; compared
-- with each row, it could not be an index condition.
-- Plan: index scan of stoker_deferred_due; TID scan for the delete.
WITH due AS MATERIALIZED (
    SELECT ctid AS place
    FROM stoker_deferred
    WHERE due_us >= %(from_us)s::bigint
        AND due_us <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    ORDER BY due_us
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
moved AS (
    DELETE FROM stoker_deferred
    WHERE ctid = ANY (ARRAY(SELECT place FROM due))
    RETURNING job_id, queue, rank, attempts, crashes, guards
)
INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
SELECT job_id, queue, rank, attempts, crashes, guards FROM moved
RETURNING job_id, queue, rank
