"""Who listens to what happens to jobs, and tells others. They change nothing about it."""
