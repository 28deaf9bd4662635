-- The first jobs of a line (SQLite, which has nothing to lock: its transactions come one by one).
-- Plan: the index of the line, in its order.
SELECT job_id, queue, rank, attempts, crashes, guards
FROM {table}
WHERE {condition}
ORDER BY rank, job_id
LIMIT %s
