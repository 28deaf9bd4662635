-- Which of these jobs are there.
-- Plan: primary key, once for each id.
SELECT id FROM stoker_job WHERE id {among}
