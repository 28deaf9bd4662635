-- Return the jobs that have places under these keys.
-- Plan: the index of holds for each key; never a scan.
SELECT need.holds, need.job_id
FROM {wanted}
{join} stoker_need AS need {index} ON need.holds = wanted.id
