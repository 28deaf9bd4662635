-- Extend: ARGV: lease (microseconds), then id and lease id of each. Returns the places, from 0, of
-- those that are stale.
go_on_when_full()
local until_us = string.format('%.0f', now_us() + tonumber(ARGV[1]))
local ids, scores, stale = {}, {}, {}
for i = 2, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
end
local records = read(ids)
for i = 1, #ids do
    if records[i] and records[i][LEASE] == ARGV[2 * i + 1] then
        scores[#scores + 1] = until_us
        scores[#scores + 1] = ids[i]
    else
        stale[#stale + 1] = i - 1
    end
end
call_in_chunks('ZADD', leases, scores, 2)
return stale
