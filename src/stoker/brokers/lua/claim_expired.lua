-- Take over leases that are over: ARGV: limit, lease id, holder, lease (microseconds).
go_on_when_full()
local over = '(' .. string.format('%.0f', now_us())
local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', over, 'LIMIT', 0, tonumber(ARGV[1]))
if #ids == 0 then
    return {}
end
return lease(ids, read(ids), ARGV[2], ARGV[3], tonumber(ARGV[4]))
