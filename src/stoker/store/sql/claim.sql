-- Claim the best jobs of all served queues that are not paused: move them from ready to claimed
-- with one new lease id. Skip rows that another claim has locked, so that claims never wait for one
-- another.
-- Jobs with guards stay in ready and are returned without a lease id. The caller checks their
-- guards in a transaction.
-- A package of more than 32 KiB is NULL: the caller reads as many of these as a claim may take.
-- A queue's line is passed as spans, in order: a slice of the arrays. They start at watermarks
-- (brokers/orm/claim.py), behind jobs that are known to be gone. Once enough jobs are found, later
-- spans are not read.
-- Plan: index scan of stoker_ready_line per span; TID scan for the delete; primary key of
-- stoker_job.
WITH best AS MATERIALIZED (
    SELECT candidate.*
    FROM (
        SELECT queue, first_span, last_span
        FROM unnest(%(queues)s::varchar[], %(first_spans)s::int[], %(last_spans)s::int[])
            AS named (queue, first_span, last_span)
        WHERE queue <> ALL (ARRAY(SELECT queue FROM stoker_pausedqueue))
    ) AS served
    CROSS JOIN LATERAL (
        SELECT first.*
        FROM unnest(
            (%(low_ranks)s::smallint[])[first_span:last_span],
            (%(low_ids)s::uuid[])[first_span:last_span],
            (%(high_ranks)s::smallint[])[first_span:last_span]
        ) AS span (low_rank, low_id, high_rank)
        CROSS JOIN LATERAL (
            SELECT ready.ctid AS place, ready.queue, ready.rank, ready.job_id, ready.guards
            FROM stoker_ready AS ready
            WHERE ready.queue = served.queue
                AND (ready.rank, ready.job_id) >= (span.low_rank, span.low_id)
                AND ready.rank <= span.high_rank
            ORDER BY ready.rank, ready.job_id
            LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        ) AS first
        LIMIT %(limit)s
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
        job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes, is_kept
    )
    SELECT job_id, %(lease_id)s::bigint, %(holder)s::uuid,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(lease_us)s::bigint,
           queue, rank, attempts + 1, crashes, TRUE
    FROM taken
    RETURNING job_id, queue, rank, attempts, crashes
)
SELECT leased.job_id, %(lease_id)s::bigint,
       CASE WHEN length(job.package) <= 32768 THEN job.package END,
       leased.queue, -leased.rank AS priority, leased.attempts, leased.crashes, 0, 0::float8, '',
       extract(epoch FROM job.run_after)::float8
FROM leased
LEFT JOIN stoker_job AS job ON job.id = leased.job_id
UNION ALL
SELECT best.job_id, NULL, ''::bytea, best.queue, -best.rank, 0, 0, 0, 0, '', NULL
FROM best
WHERE best.guards > 0
ORDER BY priority DESC, job_id
