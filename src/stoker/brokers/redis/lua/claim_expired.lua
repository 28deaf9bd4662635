-- Take over expired leases. ARGV: limit, lease id, holder, lease (microseconds).
go_on_when_full()
local over = '(' .. string.format('%.0f', now_us())
local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', over, 'LIMIT', 0, tonumber(ARGV[1]))
if #ids == 0 then
    return {}
end
ids = fitting(ids)
call_in_chunks('ZREM', leases, ids, 1)
local found, records = read_or_make_up(ids, function()
    return {'default', 0, 1, 0, '', ''}
end)
return lease(found, records, ARGV[2], ARGV[3], tonumber(ARGV[4]))
