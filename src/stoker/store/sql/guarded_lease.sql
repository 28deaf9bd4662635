-- Lease ready jobs that the caller has locked, and count the attempt. The caller deletes their rows
-- from stoker_ready (SQLite, MariaDB, MySQL).
-- Plan: the list, then the primary key for each entry of it.
INSERT INTO stoker_claimed (
    job_id, lease_id, holder, leased_until_us, queue, `rank`, attempts, crashes, guards, is_kept
)
SELECT
    ready.job_id, %s, %s, {now} + %s,
    ready.queue, ready.`rank`, ready.attempts + 1, ready.crashes, ready.guards, TRUE
FROM {wanted}
{join} stoker_ready AS ready {index} ON ready.job_id = wanted.id
