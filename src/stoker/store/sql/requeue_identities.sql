-- Return the logical jobs that these jobs continue.
-- Plan: the primary key, once for each id.
SELECT job_id, identity FROM stoker_requeue WHERE job_id {among}
