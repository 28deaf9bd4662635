-- Return the time until the next deferred job is due, in microseconds, or nothing.
local first = redis.call('ZRANGE', deferred, 0, 0, 'WITHSCORES')
if #first == 0 then
    return false
end
return tonumber(first[2]) - now_us()
