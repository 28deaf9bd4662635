-- Ack: forget leases that are still valid.
-- The arrays stand in subqueries, which hides their length from the planner: for a long list it
-- would read the whole table and hash it.
-- Plan: nested loop over the primary key.
DELETE FROM stoker_claimed AS claimed
USING unnest(
    (SELECT %(job_ids)s::uuid[]), (SELECT %(lease_ids)s::bigint[])
) AS held (job_id, lease_id)
WHERE claimed.job_id = held.job_id AND claimed.lease_id = held.lease_id
RETURNING claimed.job_id, claimed.lease_id, claimed.guards
