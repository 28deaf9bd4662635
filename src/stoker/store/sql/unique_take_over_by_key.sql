-- Take unique keys from the jobs that were seen to have them, if these still have them (MariaDB and
-- MySQL).
-- The list is ASCII, so that it can be compared with a column of any collation.
-- Plan: eq_ref over the primary key for each entry of the list; never a scan.
UPDATE JSON_TABLE(
    %s, '$[*]' COLUMNS (
        key_id CHAR(36) CHARACTER SET ascii PATH '$[0]',
        name VARCHAR(255) PATH '$[1]',
        job_id CHAR(36) CHARACTER SET ascii PATH '$[2]',
        taken_us BIGINT PATH '$[3]',
        until_us BIGINT PATH '$[4]',
        over_us BIGINT PATH '$[5]',
        old_job_id CHAR(36) CHARACTER SET ascii PATH '$[6]'
    )
) AS taking
STRAIGHT_JOIN stoker_unique FORCE INDEX (PRIMARY) ON stoker_unique.key_id = taking.key_id
SET stoker_unique.name = taking.name,
    stoker_unique.job_id = taking.job_id,
    stoker_unique.taken_us = taking.taken_us,
    stoker_unique.until_us = taking.until_us
WHERE stoker_unique.job_id = taking.old_job_id
  AND stoker_unique.until_us <= taking.over_us
