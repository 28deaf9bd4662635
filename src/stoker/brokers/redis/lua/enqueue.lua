-- Enqueue jobs. KEYS also has the lines of the queues, so that a Redis cluster refuses the script before its
-- first write if one of them is on its way to another node. ARGV: channel; how long to remember relayed jobs (microseconds; 0: not relayed);
-- latest time at which relayed jobs may be added (microseconds; 0: no limit); the runs of jobs with
-- equal values as JSON, each as {queue, rank, due time (microseconds, or ''), number of jobs}; the ids,
-- one after the other; then the package of each job. Jobs that exist already, or were relayed already
-- and are remembered, are skipped. Returns the number of added jobs; -1: too late, nothing was added.
local remembered, now = KEYS[6], now_us()
local keep_us, until_us = tonumber(ARGV[2]), tonumber(ARGV[3])
if until_us > 0 and now > until_us then
    return -1
end
local ids, forget_us = split(ARGV[5]), string.format('%.0f', now + keep_us)
local existing, fresh = values_of(jobs, ids), {}
local added, records, bodies = {}, {}, {}
local ready, ready_records, scores, relayed = {}, {}, {}, {}

local function add(i, record, due)
    local id = ids[i]
    fresh[id] = true
    added[#added + 1] = id
    records[#added] = record
    bodies[2 * #added - 1] = id
    bodies[2 * #added] = ARGV[5 + i]
    if due == '' then
        ready[#ready + 1] = id
        ready_records[#ready] = record
    else
        scores[#scores + 1] = due
        scores[#scores + 1] = id
    end
    if keep_us > 0 then
        relayed[#relayed + 1] = forget_us
        relayed[#relayed + 1] = id
    end
end

local at = 0
for _, run in ipairs(cjson.decode(ARGV[4])) do
    local queue, rank, due, count = unpack(run)
    local record = {queue, rank, 0, 0, '', ''}
    redis.call('ZCARD', ready_prefix .. queue) -- a line of another type is an error before the first write
    for i = at + 1, at + count do
        local id = ids[i]
        local is_relayed = keep_us > 0 and redis.call('ZSCORE', remembered, id)
        if not existing[i] and not fresh[id] and not is_relayed then
            add(i, record, due)
        end
    end
    at = at + count
end
-- The records come last: with a record, the job would count as enqueued.
add_ready(ready, ready_records)
call_in_chunks('ZADD', deferred, scores, 2)
call_in_chunks('HSET', packages, bodies, 2)
write(added, records)
if keep_us > 0 then
    call_in_chunks('ZADD', remembered, relayed, 2)
    -- Last: as the first write it would make a server whose memory is full accept the other writes.
    redis.call('ZREMRANGEBYSCORE', remembered, '-inf', string.format('%.0f', now))
end
if #ready > 0 then
    redis.pcall('PUBLISH', ARGV[1], '') -- the user may be forbidden to publish: the jobs are enqueued
end
return #added
