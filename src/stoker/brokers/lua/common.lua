-- What every script begins with.
--
-- KEYS of all scripts, in one hash slot by the tag {prefix}:
--   1  {prefix}:job       hash   job id -> what is known of it (msgpack, see below)
--   2  {prefix}:package   hash   job id -> package
--   3  {prefix}:deferred  zset   job id by the moment it is due, in microseconds of this server
--   4  {prefix}:leases    zset   job id by the moment its lease ends, in microseconds of this server
--   5  {prefix}:queues    set    names of queues
--   6  {prefix}:relayed   zset   job id of what came from an outbox, by when that was
-- and, made of the name of a queue:
--      {prefix}:ready:QUEUE  zset   job id by rank (minus the priority); of one rank, by id: those
--                                   made later sort later
--
-- A job is {queue, rank, attempts, crashes, lease, holder}; lease and holder are "" while it waits.
local jobs, packages, deferred, leases, queues = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ready_prefix = string.sub(jobs, 1, -4) .. 'ready:'
local QUEUE, RANK, ATTEMPTS, CRASHES, LEASE, HOLDER = 1, 2, 3, 4, 5, 6
local CHUNK = 1000

local function now_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- A server whose memory is full refuses whatever may need more of it as the first write of a script.
-- What carries jobs out must not be refused: it begins with a write that needs none.
local function go_on_when_full()
    redis.call('ZREM', leases, '')
end

-- A call with more arguments than fit on Lua's stack.
local function call_in_chunks(command, key, arguments, width)
    local step = CHUNK * width
    for start = 1, #arguments, step do
        local stop = math.min(start + step - 1, #arguments)
        redis.call(command, key, unpack(arguments, start, stop))
    end
end

local function read(ids)
    local found = {}
    for start = 1, #ids, CHUNK do
        local stop = math.min(start + CHUNK - 1, #ids)
        local values = redis.call('HMGET', jobs, unpack(ids, start, stop))
        for i = 1, #values do
            found[start + i - 1] = values[i] and cmsgpack.unpack(values[i])
        end
    end
    return found
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
    end
end

local function promote(limit)
    local due = redis.call('ZRANGEBYSCORE', deferred, '-inf', now_us(), 'LIMIT', 0, limit)
    if #due > 0 then
        add_ready(due, read(due))
        call_in_chunks('ZREM', deferred, due, 1)
    end
end

local function forget(ids)
    call_in_chunks('HDEL', jobs, ids, 1)
    call_in_chunks('HDEL', packages, ids, 1)
end

-- Lease these, and tell of them as claims do.
local function lease(ids, records, lease_id, holder, lease_us)
    local scores, values = {}, {}
    local until_us = now_us() + lease_us
    for i = 1, #ids do
        records[i][LEASE], records[i][HOLDER] = lease_id, holder
        scores[#scores + 1] = string.format('%.0f', until_us)
        scores[#scores + 1] = ids[i]
    end
    write(ids, records)
    call_in_chunks('ZADD', leases, scores, 2)
    for start = 1, #ids, CHUNK do
        local stop = math.min(start + CHUNK - 1, #ids)
        local found = redis.call('HMGET', packages, unpack(ids, start, stop))
        for i = 1, #found do
            local record = records[start + i - 1]
            values[#values + 1] = {
                ids[start + i - 1], found[i] or '', record[QUEUE], record[RANK],
                record[ATTEMPTS], record[CRASHES], record[LEASE],
            }
        end
    end
    return values
end
