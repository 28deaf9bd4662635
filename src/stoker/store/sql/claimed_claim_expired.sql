-- Rescue: take over expired leases with a new lease id. The UPDATE checks the condition again.
-- A package of more than 32 KiB is NULL: the caller reads as many of these as a claim may take.
-- Plan: scan of stoker_claimed, which has one row per running job.
WITH over AS MATERIALIZED (
    SELECT job_id
    FROM stoker_claimed
    WHERE leased_until_us < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    ORDER BY leased_until_us
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
rescued AS (
    UPDATE stoker_claimed AS claimed
    SET lease_id = %(lease_id)s,
        holder = %(holder)s,
        leased_until_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(lease_us)s
    FROM over
    WHERE claimed.job_id = over.job_id
      AND claimed.leased_until_us < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    RETURNING claimed.job_id, claimed.lease_id, claimed.queue, claimed.rank, claimed.attempts,
              claimed.crashes
)
SELECT rescued.job_id, rescued.lease_id,
       CASE WHEN length(job.package) <= 32768 THEN job.package END,
       rescued.queue, -rescued.rank, rescued.attempts, rescued.crashes, 0, 0::float8, '', NULL
FROM rescued
LEFT JOIN stoker_job AS job ON job.id = rescued.job_id
