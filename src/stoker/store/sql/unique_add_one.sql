-- Enqueue one job if it gets its unique key: a key without a row, or the key of the job that was
-- seen to have it, if that job still has it and may be replaced. It is one statement, and so atomic
-- without a transaction. If the logical job has an open dead letter, the new job continues it. See
-- job_add_one.sql for the rest.
-- Plan: inserts, one of them skipped by a constant condition; unique index of stoker_deadletter.
WITH taken AS (
    INSERT INTO stoker_unique (key_id, name, job_id, taken_us, until_us)
    VALUES (
        %(key_id)s::uuid, %(name)s, %(id)s::uuid, %(taken_us)s::bigint, %(until_us)s::bigint
    )
    ON CONFLICT (key_id) DO UPDATE
    SET name = excluded.name,
        job_id = excluded.job_id,
        taken_us = excluded.taken_us,
        until_us = excluded.until_us
    WHERE stoker_unique.job_id = %(old_job_id)s::uuid
      AND stoker_unique.until_us <= %(over_us)s::bigint
      AND {condition}
    RETURNING job_id
),
added AS (
    INSERT INTO stoker_job (
        id, task, queue, priority, package, enqueued_at, run_after, attempts, worker_id, reason
    )
    SELECT
        taken.job_id, %(task)s, %(queue)s, %(priority)s, %(package)s,
        to_timestamp(0) + %(enqueued_us)s::bigint * interval '1 microsecond',
        to_timestamp(0) + %(run_after_us)s::bigint * interval '1 microsecond', 0, '', ''
    FROM taken
    ON CONFLICT (id) DO NOTHING
    RETURNING id, queue, -priority AS rank
),
to_wait AS (
    INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes)
    SELECT id, %(due_us)s::bigint, queue, rank, 0, 0
    FROM added
    WHERE %(due_us)s::bigint IS NOT NULL
),
noted AS (
    INSERT INTO stoker_requeue (job_id, identity, from_job_id, kind, "by", because)
    SELECT added.id, letter.identity, letter.job_id, %(successor)s, '', ''
    FROM added
    JOIN stoker_deadletter AS letter ON letter.identity = %(identity)s
    WHERE letter.state = ANY (%(unclosed)s::varchar[])
    ON CONFLICT (job_id) DO NOTHING
),
to_run AS (
    INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes)
    SELECT id, queue, rank, 0, 0
    FROM added
    WHERE %(due_us)s::bigint IS NULL
)
SELECT id FROM added
