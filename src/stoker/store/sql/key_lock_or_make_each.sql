-- Lock guard keys as key_lock_or_make.sql does, with a row of values for each key.
-- Plan: insert; primary key of stoker_key.
INSERT INTO stoker_key (
    id, kind, name, places, places_by, period_us, burst, fence, has_line, starts
)
VALUES {rows}
{conflict} fence = stoker_key.fence + 1, places_by = CASE
    WHEN {new}places_by{end} > stoker_key.places_by
        AND {new}places{end} = stoker_key.places
        AND {new}period_us{end} = stoker_key.period_us
        AND {new}burst{end} = stoker_key.burst
    THEN {new}places_by{end}
    ELSE stoker_key.places_by
END
