-- One entry per logical job: the newest failure replaces what an older one said and is counted, and
-- a failure that was counted already is not counted again. An entry that was closed begins anew.
-- In the order of the identities: two who write the same ones wait for each other in one direction
-- only. What decides (state, job_id, attempts) is written last: MariaDB and MySQL go from left to
-- right, and see what was assigned before.
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
