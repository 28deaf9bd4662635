-- The narrow rows of jobs that job_copy.sql has added, and that may run now.
COPY stoker_ready (job_id, queue, rank, attempts, crashes, guards) FROM STDIN (FORMAT BINARY)
