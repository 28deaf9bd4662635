-- Claim ready jobs whose only guard is a lock or a limit with a key that no row of stoker_key has:
-- no job holds such a key, and none waits for it. Make the keys, and move the jobs from ready to
-- claimed (PostgreSQL).
-- Skip jobs that other transactions have locked, and keys that several of the jobs have. A key that
-- another transaction makes meanwhile is not made again, so its job stays in ready.
-- The needs are locked, too, so that a job whose guards were changed meanwhile is skipped.
-- A package of more than 32 KiB is NULL: the caller reads as many of these as a claim may take.
-- The arrays are in subqueries for the reason given in claimed_ack.sql.
-- Plan: primary keys of stoker_ready, stoker_need, stoker_key and stoker_job, once for each job.
WITH moment AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us
),
candidate AS MATERIALIZED (
    SELECT need.job_id, need.key_id, need.kind, need.name, need.places
    FROM stoker_ready AS ready
    JOIN stoker_need AS need ON need.id = ready.job_id
    WHERE ready.job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[])
        AND ready.guards = 1
        AND need.kind IN ('lock', 'limit')
        AND need.places > 0
        AND NOT EXISTS (SELECT FROM stoker_key AS made WHERE made.id = need.key_id)
    FOR UPDATE OF ready, need SKIP LOCKED
),
made AS (
    INSERT INTO stoker_key (
        id, kind, name, fence, places, places_by, has_line, period_us, burst, starts
    )
    SELECT key_id, min(kind), min(name), (SELECT us FROM moment), min(places),
           (array_agg(job_id))[1], false, 0, 0, '[]'::jsonb
    FROM candidate
    GROUP BY key_id
    HAVING count(*) = 1
    ORDER BY key_id
    ON CONFLICT (id) DO NOTHING
    RETURNING places_by AS job_id
),
held AS (
    UPDATE stoker_need
    SET holds = key_id, fence = (SELECT us FROM moment)
    WHERE id = ANY (ARRAY(SELECT job_id FROM made))
),
gone AS (
    DELETE FROM stoker_ready
    WHERE job_id = ANY (ARRAY(SELECT job_id FROM made))
    RETURNING job_id, queue, rank, attempts, crashes, guards
),
leased AS (
    INSERT INTO stoker_claimed (
        job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes, guards, is_kept
    )
    SELECT job_id, %(lease_id)s::bigint, %(holder)s::uuid,
           (SELECT us FROM moment) + %(lease_us)s::bigint,
           queue, rank, attempts + 1, crashes, guards, TRUE
    FROM gone
    RETURNING job_id, queue, rank, attempts, crashes
)
SELECT leased.job_id, %(lease_id)s::bigint,
       CASE WHEN length(job.package) <= 32768 THEN job.package END,
       leased.queue, -leased.rank AS priority, leased.attempts, leased.crashes,
       (SELECT us FROM moment), 0::float8, '', extract(epoch FROM job.run_after)::float8,
       CASE WHEN need.kind = 'lock' AND need.places = 1 AND need.on_busy = 'wait'
           THEN need.key_id END
FROM leased
LEFT JOIN stoker_job AS job ON job.id = leased.job_id
LEFT JOIN stoker_need AS need ON need.id = leased.job_id
ORDER BY priority DESC, leased.job_id
