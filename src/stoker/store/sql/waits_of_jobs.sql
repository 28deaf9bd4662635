-- Read the keys of the waits of jobs.
-- Plan: the unique index of stoker_wait for each job.
SELECT waited.id, waited.job_id, waited.attempts, waited.kind, waited.name
FROM {wanted}
{join} stoker_wait AS waited {index} ON waited.job_id = wanted.id
