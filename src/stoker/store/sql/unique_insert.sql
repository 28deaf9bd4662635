-- Take unique keys that nobody has had yet, in the order of their ids: two who take the same keys
-- wait for each other in one direction only. Waits for others who are about to: nobody can know
-- whether they will commit.
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
