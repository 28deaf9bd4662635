-- Ready of a queue: how many jobs of it are ready, of up to so many. Several of these are put
-- together by UNION ALL.
-- Plan: index-only scan of stoker_ready_line that ends at the limit.
SELECT 'ready', {queue}, count(*) FROM (
    SELECT 1 AS found FROM stoker_ready WHERE queue = {queue} LIMIT {limit}
) AS ready
