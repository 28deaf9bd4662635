-- Like unique_take_over.sql for one key (SQLite, MySQL).
-- Plan: primary key of stoker_unique.
UPDATE stoker_unique
SET name = %s, job_id = %s, taken_us = %s, until_us = %s
WHERE key_id = %s AND job_id = %s AND until_us <= %s AND {condition}
