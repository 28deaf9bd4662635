-- Return the lines of these keys: each queue with jobs that one of the keys blocks.
-- Plan: one look-up in stoker_blocked_line for each line; never a scan.
WITH RECURSIVE line (key_id, queue) AS (
    SELECT wanted.id, (
        SELECT min(blocked.queue) FROM stoker_blocked AS blocked {index}
        WHERE blocked.key_id = wanted.id
    )
    FROM {wanted}
    UNION ALL
    SELECT line.key_id, (
        SELECT min(blocked.queue) FROM stoker_blocked AS blocked {index}
        WHERE blocked.key_id = line.key_id AND blocked.queue > line.queue
    )
    FROM line
    WHERE line.queue IS NOT NULL
)
SELECT key_id, queue FROM line WHERE queue IS NOT NULL
