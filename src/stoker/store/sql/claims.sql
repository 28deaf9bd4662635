-- Return the leases of these jobs, each with its job's package. One of more than 32 KiB is NULL: the
-- caller reads as many of these as a claim may take.
-- Plan: two primary keys for each job.
SELECT
    held.job_id, held.lease_id,
    CASE WHEN length(job.package) <= 32768 THEN job.package END,
    held.queue, -held.rank, held.attempts, held.crashes, job.run_after
FROM {wanted}
{join} stoker_claimed AS held {index} ON held.job_id = wanted.id
LEFT JOIN stoker_job AS job ON job.id = held.job_id
