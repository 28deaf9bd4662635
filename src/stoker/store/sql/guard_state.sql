-- Read what decides about jobs under these locked keys: who holds places (1), the oldest job of each
-- sequence (2), the first job of each line (3), and the time (0).
-- Plan: the index of holds for each key; one look-up in stoker_need_order for each sequence, and two
-- in stoker_blocked_line for each line; never a scan.
SELECT 1 AS what, need.holds AS key_id, need.job_id AS job_id, '' AS queue, 0 AS number
FROM {held}
{join} stoker_need AS need {holders_index} ON need.holds = held.id
UNION ALL
SELECT 2, sequence.id, (
    SELECT need.job_id
    FROM stoker_need AS need {order_index}
    WHERE need.key_id = sequence.id
    ORDER BY need.job_id
    LIMIT 1
), '', 0
FROM {sequences}
UNION ALL
SELECT 3, line.id, (
    SELECT blocked.job_id
    FROM stoker_blocked AS blocked {line_index}
    WHERE blocked.key_id = line.id AND blocked.queue = {queue}
    ORDER BY blocked.rank, blocked.job_id
    LIMIT 1
), {queue}, (
    SELECT min(blocked.rank)
    FROM stoker_blocked AS blocked {line_index}
    WHERE blocked.key_id = line.id AND blocked.queue = {queue}
)
FROM {lines}
UNION ALL
SELECT 0, NULL, NULL, '', {now}
