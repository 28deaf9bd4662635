-- Lock the first jobs of a line, but for those that others have locked. On SQLite nothing is locked.
-- Plan: the index that has the line in this order, without sorting.
SELECT {columns}
FROM {table} {index}
WHERE {condition}
ORDER BY {rank}, {key}
LIMIT %s
{lock}
