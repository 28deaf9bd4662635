-- Insert the ready rows of jobs that job_copy.sql has inserted, and that are due.
COPY stoker_ready (job_id, queue, rank, attempts, crashes, guards) FROM STDIN (FORMAT BINARY)
