-- Count the jobs in each state, up to a limit.
-- Plan: for each state an index-only scan, which ends at the limit.
SELECT 'READY', count(*) FROM (SELECT 1 AS found FROM stoker_ready LIMIT {limit}) AS ready
UNION ALL
SELECT 'RUNNING', count(*) FROM (SELECT 1 AS found FROM stoker_claimed LIMIT {limit}) AS running
UNION ALL
SELECT 'DEFERRED', count(*) FROM (SELECT 1 AS found FROM stoker_deferred LIMIT {limit}) AS deferred
UNION ALL
SELECT 'BLOCKED', count(*) FROM (SELECT 1 AS found FROM stoker_blocked LIMIT {limit}) AS blocked
UNION ALL
SELECT 'SUCCESSFUL', count(*) FROM (
    SELECT 1 AS found FROM stoker_job WHERE status = 'SUCCESSFUL' LIMIT {limit}
) AS successful
UNION ALL
SELECT 'FAILED', count(*) FROM (
    SELECT 1 AS found FROM stoker_job WHERE status = 'FAILED' LIMIT {limit}
) AS failed
UNION ALL
SELECT 'CANCELLED', count(*) FROM (
    SELECT 1 AS found FROM stoker_job WHERE status = 'CANCELLED' LIMIT {limit}
) AS cancelled
