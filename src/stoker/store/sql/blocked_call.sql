-- Move the first jobs of each queue in the lines of these keys to ready, up to a number per line.
-- Skip rows that other transactions have locked. Return how many jobs of each line were moved.
-- Plan: for each key and queue an index scan of stoker_blocked_line; TID scan for the delete.
WITH RECURSIVE line AS (
    SELECT wanted.key_id, (
        SELECT min(blocked.queue) FROM stoker_blocked AS blocked
        WHERE blocked.key_id = wanted.key_id
    ) AS queue
    FROM unnest((SELECT %(key_ids)s::uuid[])) AS wanted (key_id)
    UNION ALL
    SELECT line.key_id, (
        SELECT min(blocked.queue) FROM stoker_blocked AS blocked
        WHERE blocked.key_id = line.key_id AND blocked.queue > line.queue
    )
    FROM line
    WHERE line.queue IS NOT NULL
),
first AS MATERIALIZED (
    SELECT candidate.place
    FROM line
    CROSS JOIN LATERAL (
        SELECT blocked.ctid AS place
        FROM stoker_blocked AS blocked
        WHERE blocked.key_id = line.key_id AND blocked.queue = line.queue
        ORDER BY blocked.rank, blocked.job_id
        LIMIT %(count)s
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    WHERE line.queue IS NOT NULL
),
gone AS (
    DELETE FROM stoker_blocked
    WHERE ctid = ANY (ARRAY(SELECT place FROM first))
    RETURNING job_id, key_id, queue, rank, attempts, crashes, guards
),
called AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
    SELECT job_id, queue, rank, attempts, crashes, guards FROM gone
)
SELECT line.key_id, line.queue, (
    SELECT count(*) FROM gone WHERE gone.key_id = line.key_id AND gone.queue = line.queue
)
FROM line
WHERE line.queue IS NOT NULL
