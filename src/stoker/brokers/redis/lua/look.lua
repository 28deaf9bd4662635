-- Look up jobs. ARGV: ids. Returns for each job: queue, rank, attempts, crashes, lease, holder, 1 if it
-- is kept, else 0, and 1 if it is deferred, else 0. Returns an empty list for a job that does not exist.
local records = read(ARGV)
local found = {}
for i = 1, #ARGV do
    local record = records[i]
    if record then
        found[i] = {unpack(record, QUEUE, HOLDER)}
        found[i][KEPT] = record[KEPT] or 0
        found[i][KEPT + 1] = redis.call('ZSCORE', deferred, ARGV[i]) and 1 or 0
    else
        found[i] = {}
    end
end
return found
