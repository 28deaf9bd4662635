-- Lease ready jobs without guards, and count the attempt (SQLite). The caller deletes their rows
-- from stoker_ready.
-- Plan: the list, then the primary key for each entry of it.
INSERT INTO stoker_claimed (
    job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes, guards, is_kept
)
SELECT
    ready.job_id, %(lease_id)s, %(holder)s, {now} + %(lease_us)s,
    ready.queue, ready.rank, ready.attempts + 1, ready.crashes, ready.guards, TRUE
FROM json_each(%(job_ids)s) AS given
CROSS JOIN stoker_ready AS ready ON ready.job_id = given.value AND ready.guards = 0
