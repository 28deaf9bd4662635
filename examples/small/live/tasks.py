"""A job that takes long."""

import time

from stoker import job, task


@task
def write_report(chapters: int) -> str:
    """Write a report, and report the progress."""
    for chapter in range(1, chapters + 1):
        time.sleep(1)
        job.progress(chapter, total=chapters, message=f"chapter {chapter}")
    return f"The report has {chapters} chapters."
