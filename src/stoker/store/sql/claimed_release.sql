-- Release: move leased jobs back to ready, or to deferred if they have a delay.
-- No join, and the array in a subquery, for the reasons given in claimed_ack.sql.
-- Plan: the primary key; lease, delay, attempts and crashes of each job are looked up in the JSON
-- object by the job's id.
WITH freed AS (
    DELETE FROM stoker_claimed
    WHERE job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[])
    AND lease_id = ((SELECT %(returns)s::jsonb) -> encode(uuid_send(job_id), 'hex') ->> 0)::bigint
    RETURNING job_id, lease_id, queue, rank, guards,
              (SELECT %(returns)s::jsonb) -> encode(uuid_send(job_id), 'hex') AS given
),
back AS (
    SELECT job_id, queue, rank, guards, (given ->> 1)::bigint AS delay_us,
           (given ->> 2)::smallint AS attempts, (given ->> 3)::smallint AS crashes
    FROM freed
),
to_wait AS (
    INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes, guards)
    SELECT job_id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + delay_us,
           queue, rank, attempts, crashes, guards
    FROM back
    WHERE delay_us > 0
),
to_run AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes, guards)
    SELECT job_id, queue, rank, attempts, crashes, guards
    FROM back
    WHERE delay_us <= 0
)
SELECT job_id, lease_id, guards FROM freed
