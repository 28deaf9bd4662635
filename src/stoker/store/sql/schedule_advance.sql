-- Note that a schedule fired, and set its next moment, unless its row has changed.
-- Plan: primary key.
UPDATE stoker_schedule
SET moment_us = %s, due_us = %s, last_job_id = %s, last_moment_us = %s, repeats_left = %s,
    fired_count = fired_count + 1, missed_count = missed_count + %s, last_fired_us = {now}
WHERE id = %s AND due_us = %s AND moment_us = %s AND held_us IS NULL AND NOT is_paused
