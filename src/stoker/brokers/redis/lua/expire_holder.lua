-- End all leases of a holder at once. ARGV: holder. Returns their number.
go_on_when_full()
local ids = redis.call('ZRANGEBYSCORE', leases, '(0', '+inf')
local records = read(ids)
local scores = {}
for i = 1, #ids do
    if records[i] and records[i][HOLDER] == ARGV[1] then
        scores[#scores + 1] = 0
        scores[#scores + 1] = ids[i]
    end
end
call_in_chunks('ZADD', leases, scores, 2)
return #scores / 2
