-- Note that workers get these jobs now. ARGV: the leases. Stale ones change nothing.
go_on_when_full()
local ids, lease_ids = named(ARGV[1])
local records, ours, theirs = read(ids), {}, {}
for i = 1, #ids do
    local record = records[i]
    if record and record[LEASE] == lease_ids[i] then
        ours[#ours + 1] = ids[i]
        theirs[#theirs + 1] = record
    end
end
each_record(theirs, function(record)
    record[KEPT] = nil
end)
write(ours, theirs)
return #ours
