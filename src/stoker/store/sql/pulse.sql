-- Return values that change whenever something changes that screens show.
-- Plan: one end of an index each; small tables are read completely.
SELECT
    (SELECT id FROM stoker_job ORDER BY id DESC LIMIT 1),
    (SELECT finished_at FROM stoker_job WHERE status = 'SUCCESSFUL'
     ORDER BY finished_at DESC LIMIT 1),
    (SELECT finished_at FROM stoker_job WHERE status = 'FAILED'
     ORDER BY finished_at DESC LIMIT 1),
    (SELECT finished_at FROM stoker_job WHERE status = 'CANCELLED'
     ORDER BY finished_at DESC LIMIT 1),
    (SELECT max(id) FROM stoker_attempt),
    (SELECT max(failed_at) FROM stoker_deadletter),
    (SELECT job_id FROM stoker_claimed ORDER BY job_id DESC LIMIT 1),
    (SELECT count(*) FROM (SELECT 1 AS found FROM stoker_claimed LIMIT 1000) AS held),
    (SELECT id FROM stoker_workflow ORDER BY id DESC LIMIT 1),
    (SELECT sum(heartbeat_us) FROM stoker_cluster),
    (SELECT count(*) FROM stoker_pausedqueue),
    (SELECT sum(fired_count + missed_count) FROM stoker_schedule),
    (SELECT count(*) FROM stoker_schedule WHERE is_paused = TRUE),
    (SELECT id FROM stoker_bulkoperation ORDER BY id DESC LIMIT 1),
    (SELECT sum(done + refused) FROM stoker_bulkoperation WHERE state = 'running'),
    (SELECT count(*) FROM stoker_bulkoperation WHERE state IN ('running', 'paused')){logs}
