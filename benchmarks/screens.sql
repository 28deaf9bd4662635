-- Fill an empty store on PostgreSQL as after a busy week. A semicolon at the end of a line ends a
-- statement. Seven of ten jobs have ended, and one of {every} of those has failed.

-- When a job was enqueued: the ended ones in the last week, the others in the last hour.
CREATE OR REPLACE FUNCTION pg_temp.made_ms(n bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT {now_ms} - (
        CASE WHEN n <= {over} THEN 604800000.0 * ({over} - n) / {over}
             ELSE 3600000.0 * ({jobs} - n) / ({jobs} - {over}) END
    )::bigint
$$;

-- Ids sort by time, like those that Stoker makes.
CREATE OR REPLACE FUNCTION pg_temp.id_of(n bigint, kind text DEFAULT '0') RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(pg_temp.made_ms(n)), 12, '0') || '70008' || kind
            || lpad(to_hex(n), 14, '0'))::uuid
$$;

INSERT INTO stoker_job (id, task, queue, priority, package, enqueued_at, attempts, worker_id,
                        reason, status, started_at, finished_at, value)
SELECT pg_temp.id_of(n), 'shop.orders.tasks.task_' || n % {tasks}, 'queue_' || n % {queues}, 0,
       {package}, at, 1,
       'host' || n % 4 || ':1.0',
       CASE WHEN n <= {over} AND n % {every} = 0 THEN 'error: Broken: no answer' ELSE '' END,
       CASE WHEN n > {over} THEN NULL WHEN n % {every} = 0 THEN 'FAILED' WHEN n % 97 = 0
            THEN 'CANCELLED' ELSE 'SUCCESSFUL' END,
       CASE WHEN n <= {over} THEN at END,
       CASE WHEN n <= {over} THEN at + interval '1 second' * (n % 30) END,
       CASE WHEN n <= {over} AND n % {every} > 0 THEN {value}::bytea END
FROM (SELECT n, to_timestamp(pg_temp.made_ms(n) / 1000.0) AS at
      FROM generate_series(1, {jobs}) AS n) AS made;

INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes)
SELECT pg_temp.id_of(n), 'queue_' || n % {queues}, n % 3, 0, 0
FROM generate_series({over} + 1, {jobs}) AS n
WHERE n % 10 < 6 OR (n % 10 = 9 AND n > {over} + 5000);

INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes)
SELECT pg_temp.id_of(n), (extract(epoch FROM now()) * 1e6)::bigint + n::bigint * 1000,
       'queue_' || n % {queues}, 0, 0, 0
FROM generate_series({over} + 1, {jobs}) AS n WHERE n % 10 IN (6, 7);

INSERT INTO stoker_claimed (job_id, lease_id, holder, leased_until_us, queue, rank, attempts,
                            crashes)
SELECT pg_temp.id_of(n), n, {holder}, 9e15, 'queue_' || n % {queues}, 0, 1, 0
FROM generate_series({over} + 1, LEAST({jobs}, {over} + 5000)) AS n WHERE n % 10 = 9;

INSERT INTO stoker_key (id, kind, name, fence, places, has_line, period_us, burst, starts)
SELECT pg_temp.id_of(n, 'e'), CASE n % 9 WHEN 0 THEN 'sequence' ELSE 'lock' END,
       'lock tenant:' || n || ':https://example.com/feeds/a-long-name-of-a-feed-' || n || '.xml',
       0, 1, n <= 1000, 0, 0, '[]'
FROM generate_series(1, {jobs} / 2) AS n;

INSERT INTO stoker_need (id, job_id, key_id, kind, name, places, weight, period_us, burst, on_busy,
                         retry_us, halts, holds)
SELECT pg_temp.id_of(n), pg_temp.id_of(n), pg_temp.id_of(n, 'e'), 'lock', 'lock tenant:' || n, 1, 1,
       0, 0, 'wait', 0, n % 9 = 0, pg_temp.id_of(n, 'e')
FROM generate_series(1, {jobs} / 2) AS n;

INSERT INTO stoker_blocked (job_id, key_id, queue, rank, attempts, crashes, since_us, guards)
SELECT pg_temp.id_of(n), pg_temp.id_of(CASE WHEN n % 20 = 8 THEN 1 ELSE n % 1000 + 1 END, 'e'),
       'queue_' || n % {queues}, 0, 1, 0,
       (extract(epoch FROM now()) * 1e6)::bigint - 60000000, 1
FROM generate_series({over} + 1, {jobs}) AS n WHERE n % 10 = 8;

INSERT INTO stoker_need (id, job_id, key_id, kind, name, places, weight, period_us, burst, on_busy,
                         retry_us, halts)
SELECT job_id, job_id, key_id, 'lock', 'lock tenant', 1, 1, 0, 0, 'wait', 0, false
FROM stoker_blocked;

INSERT INTO stoker_unique (key_id, name, job_id, taken_us, until_us)
SELECT pg_temp.id_of(n, 'e'),
       'unique order:' || n || ':https://example.com/feeds/a-long-name-' || n, pg_temp.id_of(n),
       0, 0
FROM generate_series(1, {jobs} / 4) AS n;

INSERT INTO stoker_attempt (job_id, number, kind, worker_id, started_at, finished_at,
                            exception_class, message, traceback)
SELECT pg_temp.id_of(n), 1, 'failed', 'host1:1.0', now(), now(), 'shop.Broken', 'no answer',
       repeat('  File "/srv/shop/orders/tasks.py", line 7, in charge' || chr(10), 20)
FROM generate_series(1, {jobs}) AS n
WHERE (n <= {over} AND n % {every} = 0) OR (n > {over} AND n % 10 = 8);

INSERT INTO stoker_deadletter (id, identity, job_id, task, queue, package, reason, exception_class,
                               message, traceback, fingerprint, first_failed_at, failed_at, state,
                               priority, attempts, worker_id, failure_count)
SELECT pg_temp.id_of(n), 'job ' || n, pg_temp.id_of(n), 'shop.orders.tasks.task_' || n % {tasks},
       'queue_' || n % {queues}, {package}, 'error', 'shop.Broken',
       'The provider has not answered order ' || n || ' in 30 seconds: https://example.com/pay',
       repeat('  File "/srv/shop/orders/tasks.py", line 7, in charge' || chr(10), 20),
       md5('fault ' || n % 25), at, at,
       CASE WHEN n % 3 = 0 THEN 'resolved' ELSE 'open' END, 0, 1, 'host1:1.0', 1
FROM (SELECT n, to_timestamp(pg_temp.made_ms(n) / 1000.0) AS at
      FROM generate_series({every}, {over}, {every}) AS n) AS made;

INSERT INTO stoker_workflow (id, name, backend, state, tasks, has_values, reason, made_at,
                             finished_at)
SELECT pg_temp.id_of(n, 'f'), 'order ' || n, 'default', 'SUCCESSFUL', 3, false, '', now(), now()
FROM generate_series(1, {jobs}, 40) AS n;

INSERT INTO stoker_step (id, workflow_id, parent_id, position, kind, role, label, state,
                         is_optional, is_wanted, fails_fast, size, has_more, has_undo, has_error,
                         has_added, job_id)
SELECT CASE k WHEN 0 THEN pg_temp.id_of(n, 'f') ELSE pg_temp.id_of(n, to_hex(k)) END,
       pg_temp.id_of(n, 'f'), CASE k WHEN 0 THEN NULL ELSE pg_temp.id_of(n, 'f') END,
       k, CASE k WHEN 0 THEN 'chain' ELSE 'task' END, 'step', 'shop.orders.tasks.task_1',
       'SUCCESSFUL', false, false, false, 3, false, false, false, false,
       CASE k WHEN 0 THEN NULL ELSE pg_temp.id_of(n, to_hex(k)) END
FROM generate_series(1, {jobs}, 40) AS n CROSS JOIN generate_series(0, 3) AS k;

-- A workflow with a group of a thousand members.
INSERT INTO stoker_workflow (id, name, backend, state, tasks, has_values, reason, made_at,
                             finished_at)
SELECT pg_temp.id_of(n, 'f'), 'all orders of the day', 'default', 'FAILED', 1000, false, '',
       now() - interval '7 days', now()
FROM (SELECT {jobs} + 1 AS n) AS made;

INSERT INTO stoker_step (id, workflow_id, parent_id, position, kind, role, label, state,
                         is_optional, is_wanted, fails_fast, size, has_more, has_undo, has_error,
                         has_added, job_id)
SELECT CASE n WHEN 0 THEN root ELSE pg_temp.id_of(n) END, root,
       CASE n WHEN 0 THEN NULL ELSE root END, n,
       CASE n WHEN 0 THEN 'group' ELSE 'task' END, 'step', 'shop.orders.tasks.task_' || n % {tasks},
       CASE WHEN n % {every} = 0 THEN 'FAILED' ELSE 'SUCCESSFUL' END, false, false, false, 1000,
       false, false, false, false, CASE n WHEN 0 THEN NULL ELSE pg_temp.id_of(n) END
FROM generate_series(0, 1000) AS n,
     (SELECT pg_temp.id_of(n, 'f') AS root FROM (SELECT {jobs} + 1 AS n) AS made) AS flow;

INSERT INTO stoker_tick (schedule_id, moment_us, outcome, fired_us, count, by, job_id)
SELECT lpad(to_hex(s), 32, '0')::uuid,
       (extract(epoch FROM now()) * 1e6)::bigint - t::bigint * 600000000,
       CASE WHEN t % 50 = 0 THEN 'missed' WHEN t % 70 = 0 THEN 'skipped' ELSE 'fired' END, 0, 1, '',
       CASE WHEN s = 1 AND t % 50 > 0 THEN gen_random_uuid() END
FROM generate_series(1, {schedules}) AS s CROSS JOIN generate_series(1, 1000) AS t;

-- The history of a week, in the steps in which upkeep keeps it: see models/metrics.py.
INSERT INTO stoker_tally (start, seconds, queue, task, successful, failed, cancelled, retried,
                          run_seconds, wait_seconds, run_classes, wait_classes)
SELECT extract(epoch FROM now())::bigint / width * width - b * width, width,
       'queue_' || t % {queues}, 'shop.orders.tasks.task_' || t, width / 6, 1 + b % 3, b % 2, 2,
       50, 10,
       '{{"30": 60, "40": 40, "41": 3, "50": 7}}', '{{"20": 100, "22": 2, "40": 1}}'
FROM (VALUES (10, 0, 90), (60, 15, 90), (600, 9, 156), (3600, 26, 168)) AS made (width, first, last)
CROSS JOIN LATERAL generate_series(first, last) AS b
CROSS JOIN generate_series(0, {tasks} - 1) AS t;

INSERT INTO stoker_sample (start, seconds, queue, ready, deferred, blocked, running,
                           oldest_ready_seconds)
SELECT extract(epoch FROM now())::bigint / width * width - b * width, width, 'queue_' || q,
       1000 + b, 100 + b, 10 + b, 8, b
FROM (VALUES (60, 0, 90), (600, 9, 156), (3600, 26, 168)) AS made (width, first, last)
CROSS JOIN LATERAL generate_series(first, last) AS b
CROSS JOIN generate_series(0, {queues} - 1) AS q;

INSERT INTO stoker_bulkoperation (id, backend, operation, filters, options, by, because, state,
                                  cursor, matched, is_counted, done, refused, started_at, ended_at)
SELECT pg_temp.id_of(n), 'default', CASE n % 2 WHEN 0 THEN 'pause-queue' ELSE 'requeue-letter' END,
       CASE n % 2 WHEN 0 THEN '{{"target": "queue_1"}}'
            ELSE '{{"queue": "queue_1", "state": "open"}}' END::jsonb,
       '{{}}', 'anna', 'the provider of the payments has not answered since noon', 'done', '', 100,
       true, 90, 10, now(), now()
FROM generate_series(1, 2000) AS n;
