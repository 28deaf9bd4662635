-- Lock the first jobs of a line (MariaDB).
-- Plan: ref over the index that has them in this order, without sorting.
SELECT {columns}
FROM {table} FORCE INDEX ({index})
WHERE {condition}
ORDER BY `rank`, {key}
LIMIT %s
FOR UPDATE SKIP LOCKED
