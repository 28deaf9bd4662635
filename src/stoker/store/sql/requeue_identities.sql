-- The logical jobs that jobs carry on. The array stands in a subquery as claimed_ack.sql explains.
-- Plan: the primary key, once for each id.
SELECT job_id, identity
FROM stoker_requeue
WHERE job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[])
