-- What was leased of a list of jobs, with their packages, in its order (SQLite).
-- Plan: the list, then two primary keys for each entry of it.
SELECT
    held.job_id, held.lease_id, coalesce(job.package, x''), held.queue, -held.rank, held.attempts,
    held.crashes, 0, 0.0, '', job.run_after
FROM json_each(%(job_ids)s) AS given
CROSS JOIN stoker_claimed AS held
    ON held.job_id = given.value AND held.lease_id = %(lease_id)s
LEFT JOIN stoker_job AS job ON job.id = held.job_id
