-- Delete jobs from stoker_ready that were leased just now (SQLite).
-- Plan: the primary key for each entry of the list.
DELETE FROM stoker_ready AS ready
WHERE ready.job_id IN (SELECT value FROM json_each(%(job_ids)s)) AND ready.guards = 0
