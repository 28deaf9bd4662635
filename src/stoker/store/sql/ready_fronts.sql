-- Return the next ready job of each queue and priority.
-- Plan: skip scan of stoker_ready_line: three look-ups for each line.
WITH RECURSIVE served (queue) AS (
    SELECT (SELECT ready.queue FROM stoker_ready AS ready ORDER BY ready.queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT ready.queue FROM stoker_ready AS ready
        WHERE ready.queue > served.queue
        ORDER BY ready.queue LIMIT 1
    )
    FROM served
    WHERE served.queue IS NOT NULL
),
line (queue, place) AS (
    SELECT served.queue, (
        SELECT ready.{rank} FROM stoker_ready AS ready
        WHERE ready.queue = served.queue
        ORDER BY ready.{rank} LIMIT 1
    )
    FROM served
    WHERE served.queue IS NOT NULL
    UNION ALL
    SELECT line.queue, (
        SELECT ready.{rank} FROM stoker_ready AS ready
        WHERE ready.queue = line.queue AND ready.{rank} > line.place
        ORDER BY ready.{rank} LIMIT 1
    )
    FROM line
    WHERE line.place IS NOT NULL
)
SELECT line.queue, (
    SELECT ready.job_id FROM stoker_ready AS ready
    WHERE ready.queue = line.queue AND ready.{rank} = line.place
    ORDER BY ready.job_id LIMIT 1
)
FROM line
WHERE line.place IS NOT NULL
