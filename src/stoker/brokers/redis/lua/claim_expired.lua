-- Take over expired leases. ARGV: limit, lease id, holder, lease (microseconds).
go_on_when_full()
local over = '(' .. string.format('%.0f', now_us())
local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', over, 'LIMIT', 0, tonumber(ARGV[1]))
if #ids == 0 then
    return {}
end
ids = fitting(ids)
local found, records = read_or_make_up(ids, function()
    return {'default', 0, 1, 0, '', ''}
end)
local leased = lease(found, records, ARGV[2], ARGV[3], tonumber(ARGV[4]))
if #found < #ids then
    local ours, others = {}, {}
    for i = 1, #found do
        ours[found[i]] = true
    end
    for i = 1, #ids do
        if not ours[ids[i]] then
            others[#others + 1] = ids[i]
        end
    end
    call_in_chunks('ZREM', leases, others, 1)
end
return leased
