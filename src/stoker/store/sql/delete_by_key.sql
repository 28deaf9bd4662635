-- Delete rows by a key (MariaDB and MySQL).
-- The list is ASCII, so that it can be compared with a column of any collation.
-- Plan: eq_ref or ref over the index for each entry of the list; never a scan, which would wait for
-- rows that other transactions have inserted or locked.
DELETE narrow
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) CHARACTER SET ascii PATH '$')) AS wanted
STRAIGHT_JOIN {table} AS narrow FORCE INDEX ({index}) ON narrow.{column} = wanted.id
