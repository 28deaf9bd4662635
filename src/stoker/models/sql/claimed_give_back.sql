-- Release: move leased jobs back to ready, or to deferred when they have a delay.
-- The arrays stand in subqueries for the reason that claimed_ack.sql gives.
-- Plan: nested loop over the primary key.
WITH back AS (
    SELECT *
    FROM unnest(
        (SELECT %(job_ids)s::uuid[]), (SELECT %(lease_ids)s::bigint[]),
        (SELECT %(delays_us)s::bigint[]), (SELECT %(attempts)s::smallint[]),
        (SELECT %(crashes)s::smallint[])
    ) AS given (job_id, lease_id, delay_us, attempts, crashes)
),
freed AS (
    DELETE FROM stoker_claimed AS claimed
    USING back
    WHERE claimed.job_id = back.job_id AND claimed.lease_id = back.lease_id
    RETURNING claimed.job_id, claimed.lease_id, claimed.queue, claimed.rank,
              back.delay_us, back.attempts, back.crashes, claimed.guards
),
to_wait AS (
    INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes, guards)
    SELECT job_id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + delay_us,
           queue, rank, attempts, crashes, guards
    FROM freed
    WHERE delay_us > 0
),
to_run AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
    SELECT job_id, queue, rank, attempts, crashes, guards
    FROM freed
    WHERE delay_us <= 0
)
SELECT job_id, lease_id, guards FROM freed
