-- When the first falls due: of the deferred jobs that are not past a mark, and of the keys of guards, but
-- for those of a kind; and what time it is.
-- Plan: the left edges of two indexes.
SELECT
    (SELECT min(due_us) FROM stoker_deferred WHERE due_us >= %(from_us)s),
    (SELECT min(due_us) FROM stoker_key WHERE due_us IS NOT NULL AND kind <> %(but)s),
    {now}
