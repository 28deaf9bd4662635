-- Free a lock, if this owner has it. KEYS: the lock. ARGV: owner.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
