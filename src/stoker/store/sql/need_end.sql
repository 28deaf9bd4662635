-- Delete needs of ended jobs, and lock their keys in the order of their ids. Return the keys that
-- may block jobs, with their kinds and the number of places that became free (PostgreSQL).
-- The places of a rate become free with time.
-- MATERIALIZED: otherwise the planner would check has_line before it waits for the lock, and overlook
-- a line that the previous holder of the row lock has begun.
-- Plan: primary keys of stoker_need and stoker_key, once for each need.
WITH gone AS (
    DELETE FROM stoker_need
    WHERE id = ANY ((SELECT %(need_ids)s::uuid[])::uuid[])
    RETURNING key_id, kind
),
freed AS MATERIALIZED (
    SELECT key_id, count(*) FILTER (WHERE kind <> 'rate') AS places FROM gone GROUP BY key_id
),
locked AS MATERIALIZED (
    SELECT held.id, held.kind, held.has_line
    FROM stoker_key AS held
    WHERE held.id = ANY (ARRAY(SELECT key_id FROM freed))
    ORDER BY held.id
    FOR UPDATE
)
SELECT locked.id, locked.kind, (SELECT places FROM freed WHERE freed.key_id = locked.id)
FROM locked
WHERE locked.has_line
