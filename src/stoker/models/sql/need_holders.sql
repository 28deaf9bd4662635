-- Who has places under these keys, as committed by now (MariaDB): a read that locks sees past the
-- snapshot of a REPEATABLE READ transaction. Only rows of holders are touched, whose keys we hold.
-- Plan: ref over the index of holds for each entry of the list; never a scan.
SELECT need.holds, need.job_id
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS wanted
STRAIGHT_JOIN {table} AS need FORCE INDEX ({index}) ON need.holds = wanted.id
LOCK IN SHARE MODE
