-- The logical jobs that jobs carry on.
-- Plan: the primary key, once for each id.
SELECT job_id, identity FROM stoker_requeue WHERE job_id {among}
