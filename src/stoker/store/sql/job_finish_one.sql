-- Record how one job ended (SQLite, MariaDB and MySQL).
-- Plan: primary key.
UPDATE stoker_job
SET status = %s, attempts = %s, worker_id = %s, started_at = %s, finished_at = %s, value = %s,
    reason = %s
WHERE id = %s
