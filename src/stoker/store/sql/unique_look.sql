-- Return unique keys and the states of their jobs in one snapshot.
-- Status: '' if the job is alive, NULL if it is gone. Places: attempts used so far, if the job
-- waits there.
-- Returns at least one row, because the row contains the database's time.
-- Plan: primary key of stoker_unique; for each row the primary keys of the others.
SELECT
    clock.now_us, uniq.key_id, uniq.job_id, uniq.taken_us, uniq.until_us,
    (SELECT coalesce(job.status, '') FROM stoker_job AS job WHERE job.id = uniq.job_id),
    (SELECT ready.attempts FROM stoker_ready AS ready WHERE ready.job_id = uniq.job_id),
    (SELECT deferred.attempts FROM stoker_deferred AS deferred WHERE deferred.job_id = uniq.job_id),
    (SELECT blocked.attempts FROM stoker_blocked AS blocked WHERE blocked.job_id = uniq.job_id)
FROM (SELECT {now} AS now_us) AS clock
LEFT JOIN stoker_unique AS uniq ON uniq.key_id {among}
