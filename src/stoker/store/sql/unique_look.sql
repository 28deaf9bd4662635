-- Unique keys and what their jobs do, all of one moment.
-- Status: '' while the job is alive, NULL when it is gone. Places: attempts used so far, where it waits.
-- Always at least one row, for the sake of the clock.
-- Plan: primary key of stoker_unique; for each row the primary keys of the others.
SELECT
    clock.now_us, uniq.key_id, uniq.job_id, uniq.taken_us, uniq.until_us,
    (SELECT coalesce(job.status, '') FROM stoker_job AS job WHERE job.id = uniq.job_id),
    (SELECT ready.attempts FROM stoker_ready AS ready WHERE ready.job_id = uniq.job_id),
    (SELECT deferred.attempts FROM stoker_deferred AS deferred WHERE deferred.job_id = uniq.job_id),
    (SELECT blocked.attempts FROM stoker_blocked AS blocked WHERE blocked.job_id = uniq.job_id)
FROM (SELECT {now} AS now_us) AS clock
LEFT JOIN stoker_unique AS uniq ON uniq.key_id {among}
