-- Return the oldest job under each of these keys.
-- Plan: for each key one look-up at the left end of its part of stoker_need_order.
SELECT wanted.id, (
    SELECT need.job_id
    FROM stoker_need AS need {index}
    WHERE need.key_id = wanted.id
    ORDER BY need.job_id
    LIMIT 1
)
FROM {wanted}
