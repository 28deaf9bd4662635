-- Ack and release jobs. ARGV: number of acked leases; the acked leases, then the released leases;
-- then delay (microseconds), attempts and crashes of each released job. Returns the indexes, from
-- 0, of stale leases.
go_on_when_full()
local count = tonumber(ARGV[1])
local ids, lease_ids = named(ARGV[2])
local backs, stale = {}, {}
for i = count + 1, #ids do
    local at = 3 * (i - count)
    backs[i] = {tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])}
end
local records = read(ids)
local over, again, again_records, due = {}, {}, {}, {}
local ready, ready_records = {}, {}
local done = {}
local now = now_us()
for i = 1, #ids do
    local record = records[i]
    if done[ids[i]] == lease_ids[i] then
        -- The same lease is given twice.
    elseif not record or record[LEASE] ~= lease_ids[i] then
        stale[#stale + 1] = i - 1
    else
        done[ids[i]] = lease_ids[i]
        if not backs[i] then
            over[#over + 1] = ids[i]
        else
            record = {record[QUEUE], record[RANK], backs[i][2], backs[i][3], '', ''}
            record[RETURNED] = 1
            again[#again + 1] = ids[i]
            again_records[#again_records + 1] = record
            if backs[i][1] > 0 then
                due[#due + 1] = string.format('%.0f', now + backs[i][1])
                due[#due + 1] = ids[i]
            else
                ready[#ready + 1] = ids[i]
                ready_records[#ready_records + 1] = record
            end
        end
    end
end
-- The leases come last: if an earlier write fails, the call can be repeated.
add_ready(ready, ready_records)
call_in_chunks('ZADD', deferred, due, 2)
write(again, again_records)
forget(over)
call_in_chunks('ZREM', leases, over, 1)
call_in_chunks('ZREM', leases, again, 1)
return stale
