-- Move the first jobs of each queue in the lines of these keys to ready, up to a number per line.
-- Skip rows that other transactions have locked. Return of each line how many jobs were moved, and
-- whether one was skipped. Record how long the moved jobs were blocked, as wait_of_blocked.sql does.
-- Plan: for each key and queue an index scan of stoker_blocked_line; TID scan for the delete;
-- primary key of stoker_key for each moved job.
WITH RECURSIVE line AS (
    SELECT wanted.key_id, wanted.most, (
        SELECT min(blocked.queue) FROM stoker_blocked AS blocked
        WHERE blocked.key_id = wanted.key_id
    ) AS queue
    FROM unnest(
        (SELECT %(key_ids)s::uuid[]), (SELECT %(counts)s::bigint[])
    ) AS wanted (key_id, most)
    UNION ALL
    SELECT line.key_id, line.most, (
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
        LIMIT line.most
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    WHERE line.queue IS NOT NULL
),
gone AS (
    DELETE FROM stoker_blocked
    WHERE ctid = ANY (ARRAY(SELECT place FROM first))
    RETURNING job_id, key_id, queue, rank, attempts, crashes, guards, since_us
),
called AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
    SELECT job_id, queue, rank, attempts, crashes, guards FROM gone
),
waited AS (
    INSERT INTO stoker_wait (job_id, attempts, kind, name, began_us, total_us, times)
    SELECT gone.job_id, gone.attempts, guard.kind, guard.name, gone.since_us,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - gone.since_us, 1
    FROM gone
    JOIN stoker_key AS guard ON guard.id = gone.key_id
    WHERE gone.since_us > 0
    ON CONFLICT (job_id, attempts, kind, name) DO UPDATE
    SET total_us = stoker_wait.total_us + excluded.total_us, times = stoker_wait.times + 1
),
moved AS (
    SELECT key_id, queue, count(*) AS number FROM gone GROUP BY key_id, queue
)
SELECT line.key_id, line.queue, coalesce(moved.number, 0),
       coalesce(moved.number, 0) < line.most AND coalesce(moved.number, 0) < (
           SELECT count(*) FROM (
               SELECT 1 FROM stoker_blocked AS blocked
               WHERE blocked.key_id = line.key_id AND blocked.queue = line.queue
               ORDER BY blocked.rank, blocked.job_id
               LIMIT line.most
           ) AS seen
       )
FROM line
LEFT JOIN moved ON moved.key_id = line.key_id AND moved.queue = line.queue
WHERE line.queue IS NOT NULL
