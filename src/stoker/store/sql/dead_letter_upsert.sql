-- Insert one entry per logical job. If there is an entry, overwrite it with the newer failure and
-- count that, unless it was counted already. A closed entry is opened again, and its counts start
-- anew.
-- Rows are in the order of the identities, so that two transactions with the same entries cannot
-- deadlock. The columns that the expressions read (state, job_id, attempts) are assigned last:
-- MariaDB and MySQL assign from left to right, and expressions see the new values.
-- Plan: unique index of identity for each row.
INSERT INTO stoker_deadletter ({columns})
{rows}
{conflict}
    failure_count = CASE
        WHEN stoker_deadletter.state IN ('resolved', 'discarded') THEN {new}failure_count{end}
        WHEN stoker_deadletter.job_id = {new}job_id{end}
            AND stoker_deadletter.attempts = {new}attempts{end}
            THEN stoker_deadletter.failure_count
        ELSE stoker_deadletter.failure_count + {new}failure_count{end}
    END,
    first_failed_at = CASE
        WHEN stoker_deadletter.state IN ('resolved', 'discarded') THEN {new}first_failed_at{end}
        ELSE stoker_deadletter.first_failed_at
    END,
    requeued_count = CASE
        WHEN stoker_deadletter.state IN ('resolved', 'discarded') THEN 0
        ELSE stoker_deadletter.requeued_count
    END,
    {newest},
    successor_id = NULL,
    closed_at = NULL,
    closed_by = '',
    closed_because = '',
    state = 'open',
    attempts = {new}attempts{end},
    job_id = {new}job_id{end}
