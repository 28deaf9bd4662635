-- Return which of these jobs exist.
-- Plan: primary key, once for each id.
SELECT id FROM stoker_job WHERE id {among}
