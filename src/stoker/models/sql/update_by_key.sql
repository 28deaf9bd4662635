-- Write to rows by primary key (MariaDB).
-- Plan: eq_ref over the primary key for each entry of the list; never a scan.
UPDATE JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS wanted
STRAIGHT_JOIN {table} AS narrow FORCE INDEX (PRIMARY) ON narrow.{key} = wanted.id
SET {assignments}
