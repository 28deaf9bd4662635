-- Read how long blocked jobs have been blocked, and by what.
-- Plan: primary key of stoker_blocked for each job, then that of stoker_key.
SELECT blocked.job_id, blocked.attempts, guard.kind, guard.name, blocked.since_us,
       {now} - blocked.since_us
FROM stoker_blocked AS blocked
JOIN stoker_key AS guard ON guard.id = blocked.key_id
WHERE blocked.job_id {among} AND blocked.since_us > 0
