-- Return when the first deferred job after a mark is due, when the first guard key is due (keys of
-- one kind left out), and the database's time.
-- Plan: the left edges of two indexes.
SELECT
    (SELECT min(due_us) FROM stoker_deferred WHERE due_us >= %(from_us)s),
    (SELECT min(due_us) FROM stoker_key WHERE due_us IS NOT NULL AND kind <> %(but)s),
    {now}
