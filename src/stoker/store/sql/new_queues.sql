-- Return the queues with ready jobs that are not known yet (PostgreSQL). The search goes between
-- the names of known queues, whose lines may begin with many dead rows.
-- Plan: one look-up in stoker_ready_line for each gap, and one for each queue found; never a scan.
WITH RECURSIVE gap AS MATERIALIZED (
    SELECT name AS low, lead(name) OVER (ORDER BY name) AS high
    FROM unnest(array_append(%(known)s::varchar[], '')) AS bound (name)
),
found (queue) AS (
    (
        SELECT first.queue
        FROM gap
        CROSS JOIN LATERAL (
            SELECT ready.queue FROM stoker_ready AS ready
            WHERE ready.queue > gap.low AND ready.queue < gap.high
            ORDER BY ready.queue LIMIT 1
        ) AS first
        UNION ALL
        SELECT first.queue
        FROM gap
        CROSS JOIN LATERAL (
            SELECT ready.queue FROM stoker_ready AS ready
            WHERE ready.queue > gap.low AND gap.high IS NULL
            ORDER BY ready.queue LIMIT 1
        ) AS first
    )
    UNION ALL
    SELECT next.queue
    FROM found
    CROSS JOIN LATERAL (
        SELECT ready.queue FROM stoker_ready AS ready
        WHERE ready.queue > found.queue
        ORDER BY ready.queue LIMIT 1
    ) AS next
    WHERE next.queue <> ALL (%(known)s::varchar[])
)
SELECT queue FROM found
