-- The beginning of every script.
--
-- KEYS of all scripts, in one hash slot by the tag {prefix}:
--   1  {prefix}:job       hash   job id -> its record (msgpack, see below)
--   2  {prefix}:package   hash   job id -> package
--   3  {prefix}:deferred  zset   job id by due time, in microseconds on this server's clock
--   4  {prefix}:leases    zset   job id by end of its lease, in microseconds on this server's clock
--   5  {prefix}:queues    set    names of queues with ready jobs; some may be empty by now
--   6  {prefix}:relayed   zset   id of a relayed job by the time when it is forgotten
-- One more key per queue:
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
local MOST_BYTES = 16777216

local function now_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- A server whose memory is full refuses a script whose first write may need more memory. Scripts that
-- work jobs off must not be refused, so they begin with a write that needs none.
local function go_on_when_full()
    redis.call('ZREM', leases, '')
end

-- Split a call whose arguments do not fit on Lua's stack.
local function call_in_chunks(command, key, arguments, width)
    local step = CHUNK * width
    for start = 1, #arguments, step do
        local stop = math.min(start + step - 1, #arguments)
        redis.call(command, key, unpack(arguments, start, stop))
    end
end

-- Return the ids and the lease ids in "ID,LEASE;ID,LEASE;".
local function named(text)
    local ids, lease_ids = {}, {}
    for id, lease_id in string.gmatch(text, '([^,]*),([^;]*);') do
        ids[#ids + 1] = id
        lease_ids[#ids] = lease_id
    end
    return ids, lease_ids
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

local function read(ids)
    local found = {}
    for start = 1, #ids, CHUNK do
        local stop = math.min(start + CHUNK - 1, #ids)
        local values = redis.call('HMGET', jobs, unpack(ids, start, stop))
        for i = 1, #values do
            found[start + i - 1] = opened(values[i])
        end
    end
    return found
end

-- Return the valid job ids and their records. Replace a lost record by a made-up one, so that the job
-- runs, or becomes a dead letter if its package is lost, too, and does not block the others.
local function read_or_make_up(ids, made_up)
    local found, ours, records = read(ids), {}, {}
    for i = 1, #ids do
        if found[i] or (#ids[i] == 32 and not string.find(ids[i], '%X')) then
            ours[#ours + 1] = ids[i]
            records[#records + 1] = found[i] or made_up(i)
        end
    end
    return ours, records
end

local function write(ids, records)
    local arguments = {}
    for i = 1, #ids do
        arguments[#arguments + 1] = ids[i]
        arguments[#arguments + 1] = cmsgpack.pack(records[i])
    end
    call_in_chunks('HSET', jobs, arguments, 2)
end

local function add_ready(ids, records)
    local by_queue = {}
    for i = 1, #ids do
        local queue = records[i][QUEUE]
        by_queue[queue] = by_queue[queue] or {}
        table.insert(by_queue[queue], records[i][RANK])
        table.insert(by_queue[queue], ids[i])
    end
    for queue, arguments in pairs(by_queue) do
        call_in_chunks('ZADD', ready_prefix .. queue, arguments, 2)
        redis.call('SADD', queues, queue)
    end
end

local function promote(limit)
    local due = redis.call('ZRANGEBYSCORE', deferred, '-inf', now_us(), 'LIMIT', 0, limit)
    if #due > 0 then
        add_ready(read_or_make_up(due, function()
            return {'default', 0, 0, 0, '', ''}
        end))
        call_in_chunks('ZREM', deferred, due, 1)
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

-- Lease jobs and return them in the form of a claim: ids, queues, ranks, attempts and crashes as JSON,
-- then the package of each.
local function lease(ids, records, lease_id, holder, lease_us)
    local scores, known = {}, {ids, {}, {}, {}, {}}
    local until_us = string.format('%.0f', now_us() + lease_us)
    for i = 1, #ids do
        local record = records[i]
        record[LEASE], record[HOLDER] = lease_id, holder
        scores[#scores + 1] = until_us
        scores[#scores + 1] = ids[i]
        for field = QUEUE, CRASHES do
            known[field + 1][i] = record[field]
        end
    end
    write(ids, records)
    call_in_chunks('ZADD', leases, scores, 2)
    local values = {cjson.encode(known)}
    for start = 1, #ids, CHUNK do
        local stop = math.min(start + CHUNK - 1, #ids)
        local found = redis.call('HMGET', packages, unpack(ids, start, stop))
        for i = 1, #found do
            values[#values + 1] = found[i] or ''
        end
    end
    return values
end
