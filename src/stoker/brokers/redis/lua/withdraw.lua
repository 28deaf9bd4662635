-- Withdraw jobs. ARGV: ids. Returns the ids of the jobs that waited and were removed.
local records = read(ARGV)
local gone, by_queue = {}, {}
for i = 1, #ARGV do
    local record = records[i]
    if record and record[LEASE] == '' then
        by_queue[record[QUEUE]] = by_queue[record[QUEUE]] or {}
        table.insert(by_queue[record[QUEUE]], ARGV[i])
    end
end
for queue, ids in pairs(by_queue) do
    local line = is_usable(queue)
    for _, id in ipairs(ids) do
        if line or redis.call('ZSCORE', deferred, id) then
            gone[#gone + 1] = id
        end
    end
    if line then
        call_in_chunks('ZREM', ready_prefix .. queue, ids, 1)
    end
end
call_in_chunks('ZREM', deferred, gone, 1)
forget(gone)
return gone
