-- Take a lock that is free, or that its holder has had for too long. The number of the new holder.
-- KEYS: the lock, its counter.
-- ARGV: owner, lease in milliseconds, microseconds after which a holder gives way (-1: never),
--       seconds that the counter is kept.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local taken_us = redis.call('HGET', KEYS[1], 'taken_us')
local gives_way_us = tonumber(ARGV[3])
-- Owners are new for every attempt. If this one has the lock, the client repeats a call whose answer
-- was lost.
local is_other = redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1]
if taken_us and is_other and (gives_way_us < 0 or now_us - tonumber(taken_us) < gives_way_us) then
    return false
end
-- A new counter begins at the present: above whatever a counter of this name has given out before.
redis.call('SET', KEYS[2], string.format('%.0f', now_us), 'NX')
local fence = redis.call('INCR', KEYS[2])
redis.call('EXPIRE', KEYS[2], ARGV[4])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'taken_us', string.format('%.0f', now_us))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return fence
