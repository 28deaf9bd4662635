-- Extend leases that are still valid. Rows that an ack or a rescue has locked are left out and tried
-- again one by one: a statement that waits while it holds other rows can end in a deadlock.
-- The arrays stand in subqueries for the reason that claimed_ack.sql gives.
-- Plan: nested loop over the primary key.
WITH free AS MATERIALIZED (
    SELECT claimed.job_id
    FROM stoker_claimed AS claimed
    JOIN unnest(
        (SELECT %(job_ids)s::uuid[]), (SELECT %(lease_ids)s::bigint[])
    ) AS held (job_id, lease_id)
        ON claimed.job_id = held.job_id AND claimed.lease_id = held.lease_id
    FOR UPDATE OF claimed SKIP LOCKED
)
UPDATE stoker_claimed AS claimed
SET leased_until_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(lease_us)s
FROM free
WHERE claimed.job_id = free.job_id
RETURNING claimed.job_id, claimed.lease_id
