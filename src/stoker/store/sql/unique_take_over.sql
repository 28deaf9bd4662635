-- Take unique keys from the jobs that were seen to have them, if these still have them and may be
-- replaced. Rows are locked in the order of the ids, for the reason given in unique_insert.sql.
-- The arrays are in subqueries for the reason given in claimed_ack.sql.
-- Plan: nested loops over the primary key of stoker_unique.
WITH taking AS MATERIALIZED (
    SELECT *
    FROM unnest(
        (SELECT %(key_id)s::uuid[]), (SELECT %(name)s::varchar[]), (SELECT %(job_id)s::uuid[]),
        (SELECT %(taken_us)s::bigint[]), (SELECT %(until_us)s::bigint[]),
        (SELECT %(over_us)s::bigint[]), (SELECT %(old_job_id)s::uuid[])
    ) AS given (key_id, name, job_id, taken_us, until_us, over_us, old_job_id)
),
locked AS MATERIALIZED (
    SELECT stoker_unique.key_id
    FROM stoker_unique
    JOIN taking ON taking.key_id = stoker_unique.key_id
    ORDER BY stoker_unique.key_id
    FOR UPDATE OF stoker_unique
)
UPDATE stoker_unique
SET name = taking.name,
    job_id = taking.job_id,
    taken_us = taking.taken_us,
    until_us = taking.until_us
FROM taking
JOIN locked ON locked.key_id = taking.key_id
WHERE stoker_unique.key_id = taking.key_id
  AND stoker_unique.job_id = taking.old_job_id
  AND stoker_unique.until_us <= taking.over_us
  AND {condition}
RETURNING stoker_unique.key_id
