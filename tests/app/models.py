"""Tables that the tests' jobs write, so that tests can read what happened."""

from django.db import models


class Ledger(models.Model):
    """One row for each attempt that began: who ran it, from when to when."""

    job_id = models.CharField(max_length=64, db_index=True)
    attempt = models.IntegerField()
    worker = models.CharField(max_length=200)
    # Times of the monotonic clock, which is the same for all processes of a machine.
    started_ns = models.BigIntegerField()
    # NULL if the attempt was cut off.
    finished_ns = models.BigIntegerField(null=True)
    note = models.CharField(max_length=200, default="", blank=True)

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.attempt} on {self.worker}"


class Account(models.Model):
    """A sum that jobs add to: wrong if a job's effects happened twice or not at all."""

    total = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"account {self.pk}: {self.total}"
