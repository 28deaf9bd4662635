-- Claim ready jobs whose only guard is a lock or a limit with a free key: no job holds it, and none
-- waits for it. Move them from ready to claimed, and insert the keys that no row of stoker_key has
-- (PostgreSQL).
-- Skip jobs and keys that other transactions have locked, and keys that several of the given jobs
-- need, whatever their other guards: their order decides, and this statement does not know it. The
-- needs are locked, too, so that a job is skipped if another transaction is changing its guards.
-- Another transaction may claim a job with the same key after this statement has begun, and before it
-- locks the key. The other claim raises the key's fencing number. So the number that this statement
-- has seen at its beginning must be that of the row it has locked, or the job stays in ready. It also
-- stays in ready if another transaction inserts the key first. This statement may wait for that
-- insert, so it locks the other keys afterwards: otherwise two transactions could wait for each other.
-- The key notes its newest job. The id of one that was enqueued by a clock that is ahead counts as of
-- now.
-- A package of more than 32 KiB is returned as NULL. The caller reads these, up to the limit in bytes
-- of a claim.
-- The arrays are in subqueries, and values are looked up in JSON objects instead of joined tables, for
-- the reasons given in claimed_ack.sql.
-- Plan: primary keys of stoker_ready, stoker_need, stoker_key and stoker_job, and the index of
-- stoker_need by holds, once or twice for each job. The needs of a job are adjacent.
WITH moment AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us
),
latest AS MATERIALIZED (
    SELECT rpad(lpad(to_hex(us / 1000 + 1), 12, '0'), 32, '0')::uuid AS id
    FROM moment
),
given AS MATERIALIZED (
    SELECT job_id
    FROM stoker_ready
    WHERE job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[]) AND guards = 1
    FOR UPDATE SKIP LOCKED
),
candidate AS MATERIALIZED (
    SELECT job_id, key_id, kind, name, places
    FROM stoker_need
    WHERE id = ANY (ARRAY(SELECT job_id FROM given))
        AND kind IN ('lock', 'limit')
        AND places > 0
    FOR UPDATE SKIP LOCKED
),
contested AS MATERIALIZED (
    SELECT need.key_id
    FROM stoker_ready AS other
    CROSS JOIN LATERAL (
        SELECT key_id, job_id
        FROM stoker_need
        WHERE id >= other.job_id
        ORDER BY id
        LIMIT other.guards
    ) AS need
    WHERE other.job_id = ANY ((SELECT %(job_ids)s::uuid[])::uuid[])
        AND other.job_id NOT IN (SELECT job_id FROM candidate)
        AND need.job_id = other.job_id
),
alone AS MATERIALIZED (
    SELECT key_id, (array_agg(job_id))[1] AS job_id, min(kind) AS kind, min(name) AS name,
           min(places) AS places
    FROM candidate
    WHERE key_id NOT IN (SELECT key_id FROM contested)
    GROUP BY key_id
    HAVING count(*) = 1
),
known AS MATERIALIZED (
    SELECT id AS key_id, fence
    FROM stoker_key
    WHERE id = ANY (ARRAY(SELECT key_id FROM alone))
),
held AS MATERIALIZED (
    SELECT holds AS key_id
    FROM stoker_need
    WHERE holds = ANY (ARRAY(SELECT key_id FROM known))
),
free AS MATERIALIZED (
    SELECT key_id, fence
    FROM known
    WHERE key_id NOT IN (SELECT key_id FROM held)
),
made AS (
    INSERT INTO stoker_key (
        id, kind, name, fence, places, places_by, has_line, period_us, burst, starts
    )
    SELECT key_id, kind, name, (SELECT us FROM moment), places,
           least(job_id, (SELECT id FROM latest)), false, 0, 0, '[]'::jsonb
    FROM alone
    WHERE key_id NOT IN (SELECT key_id FROM known)
    ORDER BY key_id
    ON CONFLICT (id) DO NOTHING
    RETURNING id AS key_id, fence
),
locked AS MATERIALIZED (
    SELECT id AS key_id, fence + 1 AS fence
    FROM stoker_key
    WHERE (SELECT count(*) FROM made) >= 0  -- first insert, see above
        AND id = ANY (ARRAY(SELECT key_id FROM free))
        AND fence = ((SELECT jsonb_object_agg(key_id, fence) FROM free) ->> id::text)::bigint
        AND places = ((SELECT jsonb_object_agg(key_id, places) FROM alone) ->> id::text)::integer
        AND COALESCE(places_set, places) = places
        AND places_by IS NOT NULL  -- otherwise the first job has to be noted
        AND NOT has_line
    FOR UPDATE SKIP LOCKED
),
raised AS (
    UPDATE stoker_key
    SET fence = fence + 1,
        places_by = greatest(places_by, least(
            ((SELECT jsonb_object_agg(key_id, job_id) FROM alone) ->> id::text)::uuid,
            (SELECT id FROM latest)
        ))
    WHERE id = ANY (ARRAY(SELECT key_id FROM locked))
),
fences AS MATERIALIZED (
    SELECT jsonb_object_agg(key_id, fence) AS by_key
    FROM (SELECT key_id, fence FROM made UNION ALL SELECT key_id, fence FROM locked) AS both_kinds
),
admitted AS MATERIALIZED (
    SELECT job_id
    FROM alone
    WHERE key_id IN (SELECT key_id FROM made) OR key_id IN (SELECT key_id FROM locked)
),
taken AS (
    UPDATE stoker_need
    SET holds = key_id, fence = ((SELECT by_key FROM fences) ->> key_id::text)::bigint
    WHERE id = ANY (ARRAY(SELECT job_id FROM admitted))
),
gone AS (
    DELETE FROM stoker_ready
    WHERE job_id = ANY (ARRAY(SELECT job_id FROM admitted))
    RETURNING job_id, queue, rank, attempts, crashes, guards
),
leased AS (
    INSERT INTO stoker_claimed (
        job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes, guards, is_kept
    )
    SELECT job_id, %(lease_id)s::bigint, %(holder)s::uuid,
           (SELECT us FROM moment) + %(lease_us)s::bigint,
           queue, rank, attempts + 1, crashes, guards, TRUE
    FROM gone
    RETURNING job_id, queue, rank, attempts, crashes
)
SELECT leased.job_id, %(lease_id)s::bigint,
       CASE WHEN length(job.package) <= 32768 THEN job.package END,
       leased.queue, -leased.rank AS priority, leased.attempts, leased.crashes,
       ((SELECT by_key FROM fences) ->> need.key_id::text)::bigint,
       0::float8, '', extract(epoch FROM job.run_after)::float8,
       CASE WHEN need.kind = 'lock' AND need.places = 1 AND need.on_busy = 'wait'
           THEN need.key_id END
FROM leased
LEFT JOIN stoker_job AS job ON job.id = leased.job_id
LEFT JOIN stoker_need AS need ON need.id = leased.job_id
ORDER BY priority DESC, leased.job_id
