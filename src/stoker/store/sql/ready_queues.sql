-- The queues that have a ready job.
-- Plan: for each of them one look-up at the left edge of an index; never a scan.
WITH RECURSIVE found (queue) AS (
    SELECT min(queue) FROM stoker_ready
    UNION ALL
    SELECT (SELECT min(ready.queue) FROM stoker_ready AS ready WHERE ready.queue > found.queue)
    FROM found
    WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL
