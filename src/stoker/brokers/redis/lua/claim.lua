-- Claim jobs. If there are none, and all lines could be read, return the time until the next deferred job
-- is due, as next_due.lua does. ARGV: limit, lease id, holder, lease (microseconds), number of served queues (0: all), names
-- of the served queues, names of queues to skip.
local limit, lease_id, holder, lease_us = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local served, passed_over = {}, {}
for i = 6, #ARGV do
    if i - 5 <= tonumber(ARGV[5]) then
        served[#served + 1] = ARGV[i]
    else
        passed_over[ARGV[i]] = true
    end
end
go_on_when_full()
promote(500)
if #served == 0 then
    served = redis.call('SMEMBERS', queues)
end
local lines, found, count, unread = {}, {}, 0, {}
for _, queue in ipairs(served) do
    if not passed_over[queue] and not lines[queue] and limit > 0 then
        local line = redis.pcall('ZRANGE', ready_prefix .. queue, 0, limit - 1, 'WITHSCORES')
        if line.err then
            unread[#unread + 1] = queue
        elseif #line == 0 then
            redis.call('SREM', queues, queue)
        end
        lines[queue] = line
        count = count + math.min(#line, 1)
        for i = 1, #line, 2 do
            found[#found + 1] = {line[i], tonumber(line[i + 1]), queue}
        end
    end
end
if count > 1 then -- the jobs of one queue are in order
    table.sort(found, function(one, other)
        if one[2] ~= other[2] then
            return one[2] < other[2]
        end
        return one[1] < other[1]
    end)
end
local ids = {}
for i = 1, math.min(limit, #found) do
    ids[i] = found[i][1]
end
ids = fitting(ids)
if #ids == 0 and #unread == 0 then
    return next_due_us()
end
local taken = {}
for i = 1, #ids do
    local queue = found[i][3]
    taken[queue] = (taken[queue] or 0) + 1
end
local jobs_found, records = read_or_make_up(ids, function(i)
    return {found[i][3], found[i][2], 0, 0, '', ''}
end)
each_record(records, function(record)
    record[ATTEMPTS] = record[ATTEMPTS] + 1
    record[KEPT] = 1
end)
local leased = lease(jobs_found, records, lease_id, holder, lease_us, unread)
for queue, number in pairs(taken) do
    redis.call('ZREMRANGEBYRANK', ready_prefix .. queue, 0, number - 1)
end
return leased
