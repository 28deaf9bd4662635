"""The tables of Django Q 2, for migrations that refer to them. Use
``stoker.contrib.django_q.models`` in code."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class Task(models.Model):
    id = models.CharField(max_length=32, primary_key=True, editable=False)
    name = models.CharField(max_length=100, editable=False)
    func = models.CharField(max_length=256)
    hook = models.CharField(max_length=256, null=True)  # noqa: DJ001 - as Django Q has it
    args = models.TextField(null=True, editable=False)  # noqa: DJ001 - as above
    kwargs = models.TextField(null=True, editable=False)  # noqa: DJ001 - as above
    result = models.TextField(null=True, editable=False)  # noqa: DJ001 - as above
    group = models.CharField(max_length=100, null=True, editable=False)  # noqa: DJ001 - as above
    cluster = models.CharField(max_length=100, default="", null=True, blank=True)  # noqa: DJ001 - as above
    started = models.DateTimeField(editable=False)
    stopped = models.DateTimeField(editable=False)
    success = models.BooleanField(default=True, editable=False)
    attempt_count = models.IntegerField(default=0)

    class Meta:
        ordering = ("-stopped",)

    def __str__(self) -> str:
        return self.name


class Success(Task):
    class Meta:
        proxy = True


class Failure(Task):
    class Meta:
        proxy = True


class Schedule(models.Model):
    name = models.CharField(max_length=100, null=True, blank=True)  # noqa: DJ001 - as above
    func = models.CharField(max_length=256)
    hook = models.CharField(max_length=256, null=True, blank=True)  # noqa: DJ001 - as above
    args = models.TextField(null=True, blank=True)  # noqa: DJ001 - as above
    kwargs = models.TextField(null=True, blank=True)  # noqa: DJ001 - as above
    schedule_type = models.CharField(max_length=2, default="O")
    minutes = models.PositiveSmallIntegerField(null=True, blank=True)
    repeats = models.IntegerField(default=-1)
    next_run = models.DateTimeField(default=timezone.now, null=True)
    cron = models.CharField(max_length=100, null=True, blank=True)  # noqa: DJ001 - as above
    task = models.CharField(max_length=100, null=True, editable=False)  # noqa: DJ001 - as above
    cluster = models.CharField(max_length=100, default=None, null=True, blank=True)  # noqa: DJ001 - as above
    intended_date_kwarg = models.CharField(max_length=100, null=True, blank=True)  # noqa: DJ001 - as above

    class Meta:
        ordering = ("next_run",)

    def __str__(self) -> str:
        return self.name or self.func


class OrmQ(models.Model):
    key = models.CharField(max_length=100)
    payload = models.TextField()
    lock = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.key
