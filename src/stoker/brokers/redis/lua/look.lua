-- Look up: ARGV: ids. Returns queue, rank, attempts, crashes, lease, holder and whether it is deferred
-- (1 or 0) of each; an empty list for those that are not here.
local records = read(ARGV)
local found = {}
for i = 1, #ARGV do
    local record = records[i]
    if record then
        record[7] = redis.call('ZSCORE', deferred, ARGV[i]) and 1 or 0
        found[i] = record
    else
        found[i] = {}
    end
end
return found
