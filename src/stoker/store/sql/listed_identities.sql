-- The logical jobs that jobs carry on (SQLite).
-- Plan: the list, then the primary key for each entry of it.
SELECT requeue.job_id, requeue.identity
FROM json_each(%(job_ids)s) AS given
CROSS JOIN stoker_requeue AS requeue ON requeue.job_id = given.value
