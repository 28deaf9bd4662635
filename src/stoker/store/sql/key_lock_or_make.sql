-- Lock guard keys, create missing keys, and raise the fencing numbers of the others, in the order
-- of their ids, so that two transactions with the same keys cannot deadlock.
-- Always writes, so that a transaction with an old snapshot of a key fails here. A newer job with
-- the same numbers becomes the newest job of its key; the caller compares other numbers.
-- Plan: insert; primary key of stoker_key.
INSERT INTO stoker_key (
    id, kind, name, fence, places, places_by, has_line, period_us, burst, starts
)
SELECT id, kind, name, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       places, places_by, false, period_us, burst, '[]'::jsonb
FROM unnest(
    %(id)s::uuid[], %(kind)s::varchar[], %(name)s::varchar[], %(places)s::integer[],
    %(places_by)s::uuid[], %(period_us)s::bigint[], %(burst)s::integer[]
) AS stated (id, kind, name, places, places_by, period_us, burst)
ORDER BY id
ON CONFLICT (id) DO UPDATE SET fence = stoker_key.fence + 1, places_by = CASE
    WHEN excluded.places_by > stoker_key.places_by
        AND (excluded.places, excluded.period_us, excluded.burst)
            = (stoker_key.places, stoker_key.period_us, stoker_key.burst)
    THEN excluded.places_by
    ELSE stoker_key.places_by
END
RETURNING id, kind, name, fence, places, places_by, places_set, has_line, period_us, burst, starts,
          due_us
