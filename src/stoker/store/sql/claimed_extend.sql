-- Extend leases that are still valid. Rows that an ack or a rescue has locked are left out: whoever
-- holds one may be gone, and the other leases must not end meanwhile.
-- No join, and the array in a subquery, for the reasons that claimed_ack.sql gives.
-- Plan: the primary key, twice; the lease of each job is looked up in the object, by its id.
WITH free AS MATERIALIZED (
    SELECT job_id
    FROM stoker_claimed
    WHERE job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[])
        AND lease_id = ((SELECT %(leases)s::jsonb) ->> encode(uuid_send(job_id), 'hex'))::bigint
    FOR UPDATE SKIP LOCKED
)
UPDATE stoker_claimed
SET leased_until_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    + %(lease_us)s::bigint
WHERE job_id = ANY (ARRAY(SELECT job_id FROM free))
RETURNING job_id, lease_id
