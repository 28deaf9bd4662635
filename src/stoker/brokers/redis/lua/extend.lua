-- Extend leases. ARGV: lease (microseconds), then the leases. Returns the indexes, from 0, of stale
-- leases.
go_on_when_full()
local until_us = string.format('%.0f', now_us() + tonumber(ARGV[1]))
local ids, lease_ids = named(ARGV[2])
local scores, stale = {}, {}
local records = read(ids)
for i = 1, #ids do
    if records[i] and records[i][LEASE] == lease_ids[i] then
        scores[#scores + 1] = until_us
        scores[#scores + 1] = ids[i]
    else
        stale[#stale + 1] = i - 1
    end
end
call_in_chunks('ZADD', leases, scores, 2)
return stale
