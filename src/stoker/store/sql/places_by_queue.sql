-- Count the jobs of each queue in each place, among a limited number of rows per place.
-- Plan: for each table a scan that ends at the limit.
SELECT 'deferred', queue, count(*) FROM (
    SELECT queue FROM stoker_deferred LIMIT {limit}
) AS deferred GROUP BY queue
UNION ALL
SELECT 'blocked', queue, count(*) FROM (
    SELECT queue FROM stoker_blocked LIMIT {limit}
) AS blocked GROUP BY queue
UNION ALL
SELECT 'running', queue, count(*) FROM (
    SELECT queue FROM stoker_claimed LIMIT {limit}
) AS running GROUP BY queue
