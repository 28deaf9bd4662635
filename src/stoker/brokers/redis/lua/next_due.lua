-- Return the time until the next deferred job is due, in microseconds, 0 if it is overdue, or -1 if
-- no job is deferred.
return next_due_us()
