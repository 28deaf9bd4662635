-- Let the lease of a lock begin anew, if this owner has it. KEYS: the lock. ARGV: owner, milliseconds.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
    return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
