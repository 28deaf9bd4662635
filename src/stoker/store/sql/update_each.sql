-- Write to each of these rows its own number. The arrays stand in subqueries for the reason that
-- claimed_ack.sql gives.
-- Plan: nested loop over the primary key.
UPDATE {table} AS narrow
SET {column} = given.number{more}
FROM unnest((SELECT %s::uuid[]), (SELECT %s::bigint[])) AS given (id, number)
WHERE narrow.{key} = given.id
