-- Check that the server accepts writes: it refuses this one if it is a replica, cannot save, or has too few
-- replicas. One whose memory is full accepts it.
go_on_when_full()
return 1
