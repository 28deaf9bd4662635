-- Take unique keys that have no row yet, in the order of their ids, so that two transactions with
-- the same keys cannot deadlock. Waits for transactions that are inserting one of the keys, because
-- they may roll back.
-- Plan: function scan of the arrays; insert.
INSERT INTO stoker_unique (key_id, name, job_id, taken_us, until_us)
SELECT key_id, name, job_id, taken_us, until_us
FROM unnest(
    %(key_id)s::uuid[], %(name)s::varchar[], %(job_id)s::uuid[], %(taken_us)s::bigint[],
    %(until_us)s::bigint[]
) AS taking (key_id, name, job_id, taken_us, until_us)
ORDER BY key_id
ON CONFLICT (key_id) DO NOTHING
RETURNING key_id
