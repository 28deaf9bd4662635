-- Set a different number in each row (MariaDB and MySQL).
-- The list is ASCII, so that it can be compared with a column of any collation.
-- Plan: eq_ref over the primary key for each entry of the list; never a scan.
UPDATE JSON_TABLE(
    %s, '$[*]' COLUMNS (wanted_id CHAR(36) CHARACTER SET ascii PATH '$[0]', number BIGINT PATH '$[1]')
) AS given
STRAIGHT_JOIN {table} AS narrow FORCE INDEX (PRIMARY) ON narrow.{key} = given.wanted_id
SET {column} = given.number{more}
