-- Lock the first jobs of a line, and skip jobs that other transactions have locked. SQLite locks
-- nothing.
-- Plan: the index in the order of the line, without sorting.
SELECT {columns}
FROM {table} {index}
WHERE {condition}
ORDER BY {rank}, {key}
LIMIT %s
{lock}
