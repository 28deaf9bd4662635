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

-- Each line is read in blocks, so that a claim from many queues reads few more jobs than it takes. It reads on
-- in a line whose last job read is among the first jobs of all lines, because those after it may be, too.
local found, lengths, last, count, unread = {}, {}, {}, 0, {}
local function read_on(queue, number)
    local start = lengths[queue] or 0
    local stop = math.min(start + number, limit)
    local line = redis.pcall('ZRANGE', ready_prefix .. queue, start, stop - 1, 'WITHSCORES')
    if line.err then
        unread[#unread + 1] = queue
    elseif start == 0 and #line == 0 then
        redis.call('SREM', queues, queue)
    end
    for i = 1, #line, 2 do
        found[#found + 1] = {line[i], tonumber(line[i + 1]), queue}
    end
    lengths[queue] = start + #line / 2
    local may_have_more = lengths[queue] == stop and stop < limit
    last[queue] = may_have_more and found[#found] or nil
end
local block = math.max(1, math.ceil(2 * limit / math.max(1, #served)))
for _, queue in ipairs(served) do
    if not passed_over[queue] and not lengths[queue] and limit > 0 then
        read_on(queue, block)
        count = count + math.min(lengths[queue], 1)
    end
end
local lines_ahead
repeat
    if count > 1 then -- the jobs of one queue are in order
        table.sort(found, function(one, other)
            if one[2] ~= other[2] then
                return one[2] < other[2]
            end
            return one[1] < other[1]
        end)
    end
    for i = #found, limit + 1, -1 do
        found[i] = nil
    end
    lines_ahead = {}
    for i = 1, #found do
        if last[found[i][3]] == found[i] then
            lines_ahead[#lines_ahead + 1] = found[i][3]
        end
    end
    for _, queue in ipairs(lines_ahead) do
        read_on(queue, lengths[queue])
    end
until #lines_ahead == 0
local ids = {}
for i = 1, #found do
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
