-- Record successes: keep their results and ack their leases. ARGV: the leases; how long results are kept
-- (microseconds; -1: they are not kept); the largest number of results; then the result of each job, which
-- begins with its lease id and a semicolon. Returns the indexes, from 0, of stale leases, those of jobs that
-- were released before and stay, because the store may know them, and those of jobs without a record.
go_on_when_full()
local ids, lease_ids = named(ARGV[1])
local keep_us, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local prefix = string.sub(jobs, 1, -4)
local results, expiries = prefix .. 'results', prefix .. 'result_expiries'
local records = read(ids)
local stale, returned, absent, over, kept, scores = {}, {}, {}, {}, {}, {}
local done = {}
local now = now_us()
local expires_us = string.format('%.0f', now + keep_us)

-- Return whether this result was kept before, and only the answer was lost.
local function is_kept(i)
    local result = keep_us >= 0 and redis.call('HGET', results, ids[i])
    local lease_id = lease_ids[i] .. ';'
    return result and string.sub(result, 1, #lease_id) == lease_id
end

for i = 1, #ids do
    local record = records[i]
    if done[ids[i]] == lease_ids[i] then
        -- The same lease is given twice.
    elseif not record or record[LEASE] ~= lease_ids[i] then
        if record then
            stale[#stale + 1] = i - 1
        elseif not is_kept(i) then
            absent[#absent + 1] = i - 1
        end
    elseif record[RETURNED] then
        returned[#returned + 1] = i - 1
    else
        done[ids[i]] = lease_ids[i]
        over[#over + 1] = ids[i]
        if keep_us >= 0 then
            kept[#kept + 1] = ids[i]
            kept[#kept + 1] = ARGV[3 + i]
            scores[#scores + 1] = expires_us
            scores[#scores + 1] = ids[i]
        end
    end
end
-- The jobs and their leases go last: if an earlier write fails, the call can be repeated.
if #kept > 0 then
    call_in_chunks('HSET', results, kept, 2)
    call_in_chunks('ZADD', expiries, scores, 2)
    local at_once = 2 * #over
    local old = redis.call('ZRANGEBYSCORE', expiries, '-inf', now, 'LIMIT', 0, at_once)
    local excess = redis.call('ZCARD', expiries) - #old - most
    if excess > 0 then
        old = redis.call('ZRANGE', expiries, 0, #old + math.min(excess, at_once) - 1)
    end
    call_in_chunks('HDEL', results, old, 1)
    call_in_chunks('ZREM', expiries, old, 1)
    for _, key in ipairs({results, expiries}) do
        redis.call('PEXPIRE', key, string.format('%.0f', keep_us / 1000 + 1000))
    end
end
forget(over)
call_in_chunks('ZREM', leases, over, 1)
return {stale, returned, absent}
