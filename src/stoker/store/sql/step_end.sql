-- Record the results of steps. The caller has locked their workflow. The arrays are in subqueries
-- for the reason given in claimed_ack.sql.
-- Plan: nested loop from the arrays over the primary key of stoker_step.
-- Parameters: %(ids)s, %(states)s, %(step_values)s, %(causes)s.
UPDATE stoker_step AS step
SET state = ended.state, value = ended.value, cause = ended.cause
FROM unnest(
    (SELECT %(ids)s::uuid[]), (SELECT %(states)s::varchar[]),
    (SELECT %(step_values)s::bytea[]), (SELECT %(causes)s::uuid[])
) AS ended (id, state, value, cause)
WHERE step.id = ended.id
RETURNING step.id
