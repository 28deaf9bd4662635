-- Return needs by their ids.
-- Plan: primary key, once for each need.
SELECT need.id, need.job_id, need.key_id, need.kind, need.name, need.places, need.weight,
       need.period_us, need.burst, need.on_busy, need.retry_us, need.halts, need.holds, need.fence
FROM {wanted}
{join} stoker_need AS need {index} ON need.id = wanted.id
ORDER BY need.id
