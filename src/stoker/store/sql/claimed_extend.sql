-- Extend leases that are still valid. Skip rows that an ack or a rescue has locked: its process may
-- be dead, and the other leases must not expire meanwhile.
-- No join, and the array in a subquery, for the reasons given in claimed_ack.sql.
-- Plan: the primary key, twice; the lease of each job is looked up in the JSON object by the job's
-- id.
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
