-- Count a page of the deferred or the leased jobs by queue. ARGV: 'deferred' or 'running', cursor, number
-- of jobs to read. Returns the next cursor, then a name and a count for each queue.
local is_leased = ARGV[1] == 'running'
local page = redis.call('ZSCAN', is_leased and leases or deferred, ARGV[2], 'COUNT', ARGV[3])
local ids = {}
for i = 1, #page[2], 2 do
    ids[#ids + 1] = page[2][i]
end
local counts = {}
for _, record in ipairs(read(ids)) do
    if record and (record[LEASE] ~= '') == is_leased then
        counts[record[QUEUE]] = (counts[record[QUEUE]] or 0) + 1
    end
end
local answer = {page[1]}
for queue, count in pairs(counts) do
    answer[#answer + 1] = queue
    answer[#answer + 1] = count
end
return answer
