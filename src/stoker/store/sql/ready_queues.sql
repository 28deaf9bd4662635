-- Return the queues with ready jobs.
-- Plan: one look-up at the left edge of an index for each queue; never a scan.
WITH RECURSIVE found (queue) AS (
    SELECT min(queue) FROM stoker_ready
    UNION ALL
    SELECT (SELECT min(ready.queue) FROM stoker_ready AS ready WHERE ready.queue > found.queue)
    FROM found
    WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL
