-- Return the queues with jobs in the line of this key.
-- Plan: one look-up in stoker_blocked_line for each queue; never a scan.
WITH RECURSIVE found (queue) AS (
    SELECT min(queue) FROM stoker_blocked WHERE key_id = %(key_id)s
    UNION ALL
    SELECT (
        SELECT min(blocked.queue) FROM stoker_blocked AS blocked
        WHERE blocked.key_id = %(key_id)s AND blocked.queue > found.queue
    )
    FROM found
    WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL
