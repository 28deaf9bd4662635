"""The progress of a job on a page of your project: ``{% job_progress result %}``."""
