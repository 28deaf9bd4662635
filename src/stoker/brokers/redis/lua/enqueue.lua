-- Enqueue jobs. ARGV: channel; how long to remember relayed jobs (microseconds; 0: not relayed);
-- latest time at which relayed jobs may be added (microseconds; 0: no limit); then id, package,
-- queue, rank, due time (microseconds, or '') of each job. Jobs that exist already, or were relayed
-- already and are remembered, are skipped. Returns the number of added jobs; -1: too late, nothing
-- was added.
local remembered, relayed, now = KEYS[6], {}, now_us()
local keep_us, until_us = tonumber(ARGV[2]), tonumber(ARGV[3])
if until_us > 0 and now > until_us then
    return -1
end
local function was_here(id)
    if redis.call('HEXISTS', jobs, id) == 1 then
        return true
    end
    return keep_us > 0 and redis.call('ZSCORE', remembered, id)
end
local ids, records, bodies, scores = {}, {}, {}, {}
local fresh = {}
for i = 4, #ARGV, 5 do
    local id = ARGV[i]
    if not fresh[id] and not was_here(id) then
        fresh[id] = true
        relayed[#relayed + 1] = string.format('%.0f', now + keep_us)
        relayed[#relayed + 1] = id
        local record = {ARGV[i + 2], tonumber(ARGV[i + 3]), 0, 0, '', ''}
        redis.call('HSET', jobs, id, cmsgpack.pack(record))
        bodies[#bodies + 1] = id
        bodies[#bodies + 1] = ARGV[i + 1]
        if ARGV[i + 4] == '' then
            ids[#ids + 1] = id
            records[#records + 1] = record
        else
            scores[#scores + 1] = ARGV[i + 4]
            scores[#scores + 1] = id
        end
    end
end
call_in_chunks('HSET', packages, bodies, 2)
call_in_chunks('ZADD', deferred, scores, 2)
add_ready(ids, records)
if keep_us > 0 then
    call_in_chunks('ZADD', remembered, relayed, 2)
    -- Last: as the first write it would make a server whose memory is full accept the other writes.
    redis.call('ZREMRANGEBYSCORE', remembered, '-inf', string.format('%.0f', now))
end
if #ids > 0 then
    redis.call('PUBLISH', ARGV[1], '')
end
return #bodies / 2
