-- Claim: the best jobs of each served queue, merged, moved from ready to claimed with one fresh
-- lease id. Rows locked by another claim are skipped, so claims never wait for one another.
-- Jobs with guards stay where they are: they come back without a package, to be decided about one by
-- one in a transaction.
-- Plan: index scan of stoker_ready_line per queue; TID scan for the delete; primary key of stoker_job.
WITH best AS MATERIALIZED (
    SELECT candidate.*
    FROM unnest(%(queues)s::varchar[]) AS served (queue)
    CROSS JOIN LATERAL (
        SELECT ready.ctid AS place, ready.rank, ready.job_id, ready.guards
        FROM stoker_ready AS ready
        WHERE ready.queue = served.queue
        ORDER BY ready.rank, ready.job_id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    ORDER BY candidate.rank, candidate.job_id
    LIMIT %(limit)s
),
taken AS (
    DELETE FROM stoker_ready
    WHERE ctid = ANY (ARRAY(SELECT place FROM best WHERE guards = 0))
    RETURNING job_id, queue, rank, attempts, crashes
),
leased AS (
    INSERT INTO stoker_claimed (
        job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes
    )
    SELECT job_id, %(lease_id)s, %(holder)s,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(lease_us)s,
           queue, rank, attempts + 1, crashes
    FROM taken
    RETURNING job_id, queue, rank, attempts, crashes
)
SELECT leased.job_id, coalesce(job.package, ''::bytea), leased.queue, leased.rank,
       leased.attempts, leased.crashes, 0 AS guards
FROM leased
LEFT JOIN stoker_job AS job ON job.id = leased.job_id
UNION ALL
SELECT best.job_id, ''::bytea, '', best.rank, 0, 0, best.guards
FROM best
WHERE best.guards > 0
ORDER BY rank, job_id
