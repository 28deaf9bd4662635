-- Carry out the decisions about ready jobs with guards that the caller has locked, together with
-- their keys: lease some, and move the others to blocked or deferred.
-- A package of more than 32 KiB is NULL: the caller reads as many of these as a claim may take.
-- The arrays are in subqueries for the reason given in claimed_ack.sql.
-- Plan: primary keys of stoker_ready, stoker_need, stoker_key and stoker_job, once for each row.
WITH gone AS (
    DELETE FROM stoker_ready
    WHERE job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[])
    RETURNING job_id, queue, rank, attempts, crashes, guards
),
turned_away AS (
    SELECT *
    FROM unnest(
        (SELECT %(turned_ids)s::uuid[]), (SELECT %(key_ids)s::uuid[]), (SELECT %(until_us)s::bigint[])
    ) AS turned (job_id, key_id, due_us)
),
blocked AS (
    INSERT INTO stoker_blocked (
        job_id, key_id, queue, rank, attempts, crashes, guards, since_us
    )
    SELECT gone.job_id, turned.key_id, queue, rank, attempts, crashes, guards, %(now_us)s::bigint
    FROM gone
    JOIN turned_away AS turned ON turned.job_id = gone.job_id AND turned.key_id IS NOT NULL
),
deferred AS (
    INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes, guards)
    SELECT gone.job_id, turned.due_us, queue, rank, attempts, crashes, guards
    FROM gone
    JOIN turned_away AS turned ON turned.job_id = gone.job_id AND turned.due_us IS NOT NULL
),
leased AS (
    INSERT INTO stoker_claimed (
        job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes, guards, is_kept
    )
    SELECT job_id, %(lease_id)s::bigint, %(holder)s::uuid,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(lease_us)s::bigint,
           queue, rank, attempts + 1, crashes, guards, TRUE
    FROM gone
    WHERE job_id NOT IN (SELECT job_id FROM turned_away)
    RETURNING job_id, queue, rank, attempts, crashes
),
held AS (
    UPDATE stoker_need AS need
    SET holds = need.key_id, fence = given.fence
    FROM unnest((SELECT %(need_ids)s::uuid[]), (SELECT %(fences)s::bigint[])) AS given (id, fence)
    WHERE need.id = given.id
),
changed AS (
    UPDATE stoker_key AS changed
    SET fence = given.fence, places = given.places, places_by = given.places_by,
        has_line = given.has_line, period_us = given.period_us, burst = given.burst,
        starts = given.starts::jsonb, due_us = given.next_us
    FROM unnest(
        (SELECT %(id)s::uuid[]), (SELECT %(fence)s::bigint[]), (SELECT %(places)s::integer[]),
        (SELECT %(places_by)s::uuid[]), (SELECT %(has_line)s::boolean[]),
        (SELECT %(period_us)s::bigint[]), (SELECT %(burst)s::integer[]),
        (SELECT %(starts)s::text[]), (SELECT %(due_us)s::bigint[])
    ) AS given (id, fence, places, places_by, has_line, period_us, burst, starts, next_us)
    WHERE changed.id = given.id
)
SELECT leased.job_id, %(lease_id)s::bigint,
       CASE WHEN length(job.package) <= 32768 THEN job.package END,
       leased.queue, -leased.rank, leased.attempts, leased.crashes, extract(epoch FROM job.run_after)::float8
FROM leased
LEFT JOIN stoker_job AS job ON job.id = leased.job_id
