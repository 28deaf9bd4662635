-- Ack: delete leases that are still valid (SQLite).
-- Plan: the list, then the primary key for each entry of it; then the rows that were found.
DELETE FROM stoker_claimed
WHERE rowid IN (
    SELECT held.rowid
    FROM json_each(%(leases)s) AS given
    CROSS JOIN stoker_claimed AS held
        ON held.job_id = json_extract(given.value, '$[0]')
        AND held.lease_id = json_extract(given.value, '$[1]')
)
RETURNING job_id, lease_id, guards
