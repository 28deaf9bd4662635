-- Set a different number in each row. The arrays are in subqueries for the reason given in
-- claimed_ack.sql.
-- Plan: nested loop over the primary key.
UPDATE {table} AS narrow
SET {column} = given.number{more}
FROM unnest((SELECT %s::uuid[]), (SELECT %s::bigint[])) AS given (id, number)
WHERE narrow.{key} = given.id
