-- The packages of jobs (SQLite).
-- Plan: the list, then the primary key for each entry of it.
SELECT job.id, job.package, job.run_after
FROM json_each(%(job_ids)s) AS given
CROSS JOIN stoker_job AS job ON job.id = given.value
