-- Delete jobs that were just leased from stoker_ready (SQLite).
-- Plan: the primary key for each entry of the list.
DELETE FROM stoker_ready AS ready
WHERE ready.job_id IN (SELECT value FROM json_each(%(job_ids)s)) AND ready.guards = 0
