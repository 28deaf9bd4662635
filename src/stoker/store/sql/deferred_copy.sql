-- Insert the deferred rows of jobs that job_copy.sql has inserted, and that are not due yet.
COPY stoker_deferred (job_id, due_us, queue, rank, attempts, crashes, guards)
FROM STDIN (FORMAT BINARY)
