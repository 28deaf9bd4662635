-- The beginning of every script.
--
-- KEYS of all scripts, in one hash slot by the tag {prefix}:
--   1  {prefix}:job       hash   job id -> its record (msgpack, see below)
--   2  {prefix}:package   hash   job id -> package
--   3  {prefix}:deferred  zset   job id by due time, in microseconds on this server's clock
--   4  {prefix}:leases    zset   job id by end of its lease, in microseconds on this server's clock
--   5  {prefix}:queues    set    names of queues with ready jobs; some may be empty by now
--   6  {prefix}:relayed   zset   id of a relayed job by the time when it is forgotten
-- One more key per queue, which only enqueue.lua gets as KEYS:
--      {prefix}:ready:QUEUE  zset   job id by rank (minus the priority), then by id: newer ids sort
--                                   later
-- Two more if results are kept here (finish.lua):
--      {prefix}:results          hash   job id -> result
--      {prefix}:result_expiries  zset   job id by the time when its result expires, in microseconds
--
-- A record is {queue, rank, attempts, crashes, lease, holder, kept, returned}; lease and holder are ""
-- while it waits. kept is 1 from the claim until the job is handed to a worker, if this is its last
-- attempt. returned is 1 if a lease of the job was released.
local jobs, packages, deferred, leases, queues = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ready_prefix = string.sub(jobs, 1, -4) .. 'ready:'
local QUEUE, RANK, ATTEMPTS, CRASHES, LEASE, HOLDER, KEPT, RETURNED = 1, 2, 3, 4, 5, 6, 7, 8
local CHUNK = 1000
local ID_LENGTH = 32
local MOST_BYTES = 16777216
local LATE_US = 10000000

local function now_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Return the time until the next deferred job is due, in microseconds, 0 if it is overdue, or -1 if
-- no job is deferred.
local function next_due_us()
    local first = redis.call('ZRANGE', deferred, 0, 0, 'WITHSCORES')
    return #first == 0 and -1 or math.max(0, tonumber(first[2]) - now_us())
end

-- A server whose memory is full refuses a script whose first write may need more memory. Scripts that
-- work jobs off must not be refused, so they begin with a write that needs none.
local function go_on_when_full()
    redis.call('ZREM', leases, '')
end

-- Return whether the line of a queue can be read and written.
local function is_usable(queue)
    return type(redis.pcall('ZCARD', ready_prefix .. queue)) == 'number'
end

-- Split a call whose arguments do not fit on Lua's stack.
local function call_in_chunks(command, key, arguments, width)
    local step = CHUNK * width
    for start = 1, #arguments, step do
        local stop = math.min(start + step - 1, #arguments)
        redis.call(command, key, unpack(arguments, start, stop))
    end
end

-- Return the ids in a text that has them one after the other.
local function split(text)
    local ids = {}
    for start = 1, #text, ID_LENGTH do
        ids[#ids + 1] = string.sub(text, start, start + ID_LENGTH - 1)
    end
    return ids
end

-- Return the ids and the lease ids in "LEASE:IDID...;LEASE:ID...;".
local function named(text)
    local ids, lease_ids = {}, {}
    for lease_id, run in string.gmatch(text, '([^:]*):([^;]*);') do
        for _, id in ipairs(split(run)) do
            ids[#ids + 1] = id
            lease_ids[#ids] = lease_id
        end
    end
    return ids, lease_ids
end

-- Return the values of a hash, false where it has none.
local function values_of(key, ids)
    local found = {}
    for start = 1, #ids, CHUNK do
        local values = redis.call('HMGET', key, unpack(ids, start, math.min(start + CHUNK - 1, #ids)))
        for i = 1, #values do
            found[start + i - 1] = values[i]
        end
    end
    return found
end

-- Unpack a job's record. Return false if it was evicted, or damaged by another program.
local function opened(value)
    local is_open, record = pcall(cmsgpack.unpack, value or '')
    local is_sound = is_open and type(record) == 'table' and type(record[QUEUE]) == 'string'
    for field = RANK, CRASHES do
        is_sound = is_sound and type(record[field]) == 'number' and math.abs(record[field]) < 1e9
    end
    for field = LEASE, HOLDER do
        is_sound = is_sound and type(record[field]) == 'string'
    end
    return is_sound and record
end

-- Return the record of each job, or false. Most jobs of a claim have equal records; these are one table
-- here. So change a record by each_record, or replace it.
local function read(ids)
    local found, known = values_of(jobs, ids), {}
    for i = 1, #found do
        local value = found[i]
        if known[value] == nil then
            known[value] = opened(value)
        end
        found[i] = known[value]
    end
    return found
end

-- Call a function once for each different record.
local function each_record(records, change)
    local seen = {}
    for i = 1, #records do
        local record = records[i]
        if not seen[record] then
            seen[record] = true
            change(record)
        end
    end
end

-- Return the valid job ids and their records. Replace a lost record by a made-up one, so that the job
-- runs, or becomes a dead letter if its package is lost, too, and does not block the others.
local function read_or_make_up(ids, made_up)
    local found, ours, records = read(ids), {}, {}
    for i = 1, #ids do
        if #ids[i] == ID_LENGTH and not string.find(ids[i], '%X') then
            ours[#ours + 1] = ids[i]
            records[#records + 1] = found[i] or made_up(i)
        end
    end
    return ours, records
end

local function write(ids, records)
    local arguments, packed = {}, {}
    each_record(records, function(record)
        packed[record] = cmsgpack.pack(record)
    end)
    for i = 1, #ids do
        arguments[2 * i - 1] = ids[i]
        arguments[2 * i] = packed[records[i]]
    end
    call_in_chunks('HSET', jobs, arguments, 2)
end

-- Add jobs to the lines of their queues. If a line cannot be used, because another program has overwritten
-- it, or because its key is on its way to another node of a Redis cluster, its jobs are deferred for a few
-- seconds. Redis does not roll a script back, so this comes before the other writes. Returns the ids of the
-- deferred jobs as a set.
local function add_ready(ids, records)
    local by_queue, late, scores = {}, {}, {}
    for i = 1, #ids do
        local record = records[i]
        local arguments = by_queue[record[QUEUE]]
        if not arguments then
            arguments = {}
            by_queue[record[QUEUE]] = arguments
        end
        arguments[#arguments + 1] = record[RANK]
        arguments[#arguments + 1] = ids[i]
    end
    for queue, arguments in pairs(by_queue) do
        if is_usable(queue) then
            call_in_chunks('ZADD', ready_prefix .. queue, arguments, 2)
            redis.call('SADD', queues, queue)
        else
            local until_us = string.format('%.0f', now_us() + LATE_US)
            for i = 2, #arguments, 2 do
                late[arguments[i]] = true
                scores[#scores + 1] = until_us
                scores[#scores + 1] = arguments[i]
            end
        end
    end
    call_in_chunks('ZADD', deferred, scores, 2)
    return late
end

local function promote(limit)
    local due = redis.call('ZRANGEBYSCORE', deferred, '-inf', now_us(), 'LIMIT', 0, limit)
    if #due > 0 then
        local late = add_ready(read_or_make_up(due, function()
            return {'default', 0, 0, 0, '', ''}
        end))
        local promoted = {}
        for i = 1, #due do
            if not late[due[i]] then
                promoted[#promoted + 1] = due[i]
            end
        end
        call_in_chunks('ZREM', deferred, promoted, 1)
    end
end

local function forget(ids)
    call_in_chunks('HDEL', jobs, ids, 1)
    call_in_chunks('HDEL', packages, ids, 1)
end

-- Return the first ids whose packages fit into one answer, at least one.
local function fitting(ids)
    local first, bytes = {}, 0
    for i = 1, #ids do
        bytes = bytes + redis.call('HSTRLEN', packages, ids[i])
        if i > 1 and bytes > MOST_BYTES then
            break
        end
        first[i] = ids[i]
    end
    return first
end

-- Lease jobs and return them in the form of a claim: the ids, one after the other; the runs of jobs with
-- equal records as JSON, each as {queue, rank, attempts, crashes, number of jobs}, with 0 jobs for each of the
-- queues that could not be read; then the package of each job.
local function lease(ids, records, lease_id, holder, lease_us, unread)
    local scores, runs, contents = {}, {}, values_of(packages, ids)
    local until_us = string.format('%.0f', now_us() + lease_us)
    each_record(records, function(record)
        record[LEASE], record[HOLDER] = lease_id, holder
    end)
    write(ids, records)
    for i = 1, #ids do
        local record = records[i]
        scores[2 * i - 1] = until_us
        scores[2 * i] = ids[i]
        if record ~= records[i - 1] then
            runs[#runs + 1] = {record[QUEUE], record[RANK], record[ATTEMPTS], record[CRASHES], 0}
        end
        runs[#runs][5] = runs[#runs][5] + 1
    end
    call_in_chunks('ZADD', leases, scores, 2)
    for _, queue in ipairs(unread or {}) do
        runs[#runs + 1] = {queue, 0, 0, 0, 0}
    end
    local values = {table.concat(ids), cjson.encode(runs)}
    for i, package in ipairs(contents) do
        values[i + 2] = package or ''
    end
    return values
end
