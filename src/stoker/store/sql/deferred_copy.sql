-- The narrow rows of jobs that job_copy.sql has added, and that may not run yet.
COPY stoker_deferred (job_id, due_us, queue, rank, attempts, crashes, guards)
FROM STDIN (FORMAT BINARY)
