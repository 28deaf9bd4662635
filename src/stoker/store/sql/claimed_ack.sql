-- Ack: delete leases that are still valid.
-- No join: if the planner believes the table to be empty, as after a quiet time, it would compare
-- each row of the table with each lease. The array is in a subquery, which hides its length from
-- the planner: for a long list the planner would read the whole table and hash it.
-- Plan: the primary key; the lease of each job is looked up in the JSON object by the job's id.
DELETE FROM stoker_claimed
WHERE job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[])
    AND lease_id = ((SELECT %(leases)s::jsonb) ->> encode(uuid_send(job_id), 'hex'))::bigint
RETURNING job_id, lease_id, guards
