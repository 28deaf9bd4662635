-- Count the ready jobs of a queue, up to a limit. Several of these are combined by UNION ALL.
-- Plan: index-only scan of stoker_ready_line that ends at the limit.
SELECT 'ready', {queue}, count(*) FROM (
    SELECT 1 AS found FROM stoker_ready WHERE queue = {queue} LIMIT {limit}
) AS ready
