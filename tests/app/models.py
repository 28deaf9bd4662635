"""What the jobs of the tests write, so that a test can read off what really happened."""

from django.db import models


class Ledger(models.Model):
    """One line for each attempt that began: who ran it, from when to when."""

    job_id = models.CharField(max_length=64, db_index=True)
    attempt = models.IntegerField()
    worker = models.CharField(max_length=200)
    # Of the monotonic clock, which is the same for all processes of one machine.
    started_ns = models.BigIntegerField()
    # Empty when the attempt was cut off.
    finished_ns = models.BigIntegerField(null=True)
    note = models.CharField(max_length=200, default="", blank=True)

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.attempt} on {self.worker}"


class Account(models.Model):
    """A sum that jobs add to: wrong when a job's effects happened twice, or not at all."""

    total = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"account {self.pk}: {self.total}"
