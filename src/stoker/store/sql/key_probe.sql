-- Insert guard keys, and wait for other transactions that are inserting them, but not for long. The
-- caller rolls back (PostgreSQL).
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', %(milliseconds)s::text, true) AS is_set
)
INSERT INTO stoker_key (
    id, kind, name, fence, places, has_line, period_us, burst, starts
)
SELECT key_id, '', '', 0, 1, false, 0, 0, '[]'::jsonb
FROM patience, unnest(%(key_ids)s::uuid[]) AS given (key_id)
WHERE is_set <> ''
ON CONFLICT (id) DO NOTHING
RETURNING id
