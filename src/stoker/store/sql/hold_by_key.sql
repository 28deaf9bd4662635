-- Lock rows by primary key, in the order of the list, and read them (MariaDB).
-- Plan: eq_ref over the primary key for each entry of the list; never a scan.
SELECT {columns}
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS wanted
STRAIGHT_JOIN {table} AS narrow FORCE INDEX (PRIMARY) ON narrow.{key} = wanted.id
{lock}
