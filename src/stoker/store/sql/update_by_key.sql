-- Update rows by primary key (MariaDB and MySQL).
-- The list is ASCII, so that it can be compared with a column of any collation.
-- Plan: eq_ref over the primary key for each entry of the list; never a scan.
UPDATE JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) CHARACTER SET ascii PATH '$')) AS wanted
STRAIGHT_JOIN {table} AS narrow FORCE INDEX (PRIMARY) ON narrow.{key} = wanted.id
SET {assignments}
