-- Lock rows by primary key in the order of the keys, and return them (PostgreSQL, SQLite).
-- Plan: primary key, once for each key.
SELECT {columns}
FROM {table} AS narrow
WHERE narrow.{key} {among}
ORDER BY narrow.{key}
{lock}
