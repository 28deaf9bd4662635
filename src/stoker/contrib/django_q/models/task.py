"""``Task``: what became of a job of the shim. A row is written in the transaction that records the
job's end, and stays until ``save_limit`` or somebody deletes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Self
from uuid import uuid4

from django.db import models
from django.utils import timezone

from stoker.contrib.django_q import conf

from .sealed import SealedField

LONGEST_ID = 32


def new_id() -> str:
    return uuid4().hex


class TaskQuerySet(models.QuerySet["Task"]):
    def of_group(self, group_id: str | None) -> TaskQuerySet:
        return self.filter(group=group_id)

    def named(self, task_id: Any) -> Task | None:
        """The row of that id or name; of several of one name the newest."""
        text = str(task_id)
        if len(text.replace("-", "")) == LONGEST_ID:
            row = self.filter(pk=text.replace("-", "")).first()
            if row is not None:
                return row
        return self.filter(name=text).order_by("-stopped").first()


class TaskManager(models.Manager.from_queryset(TaskQuerySet)):  # type: ignore[misc] # made at run time
    """Where the rows are written, they are read.

    Args:
        success: only these; None = all.
    """

    use_in_migrations = False

    def __init__(self, success: bool | None = None) -> None:
        super().__init__()
        self._success = success

    def get_queryset(self) -> TaskQuerySet:
        rows: TaskQuerySet = super().get_queryset()
        if self._db is None:
            rows = rows.using(conf.database())
        return rows if self._success is None else rows.filter(success=self._success)


class Task(models.Model):
    id = models.CharField(max_length=LONGEST_ID, primary_key=True, default=new_id, editable=False)
    """The job's, without hyphens."""
    name = models.CharField(max_length=100, editable=False)
    func = models.CharField(max_length=256)
    hook = models.CharField(max_length=256, null=True)  # noqa: DJ001 - as Django Q has it
    args = SealedField(null=True)
    kwargs = SealedField(null=True)
    result = SealedField(null=True)
    """What it returned; of a failure its error, as text."""
    group = models.CharField(max_length=100, editable=False, null=True)  # noqa: DJ001 - as above
    cluster = models.CharField(max_length=100, default="", null=True, blank=True)  # noqa: DJ001 - as above
    started = models.DateTimeField(editable=False, default=timezone.now)
    """When it was enqueued, as Django Q has it."""
    stopped = models.DateTimeField(editable=False, default=timezone.now)
    success = models.BooleanField(default=True, editable=False)
    attempt_count = models.IntegerField(default=0)

    objects: ClassVar[TaskManager] = TaskManager()

    class Meta:
        verbose_name = "task"
        ordering = ("-stopped",)
        indexes = (
            models.Index(fields=["group", "success"], name="stoker_dq_task_group"),
            models.Index(fields=["name"], name="stoker_dq_task_name"),
            models.Index(fields=["success", "stopped"], name="stoker_dq_task_stopped"),
            models.Index(fields=["func", "success"], name="stoker_dq_task_func"),
        )

    def __str__(self) -> str:
        return self.name or self.id

    def time_taken(self) -> float:
        """Seconds from its enqueue to its end."""
        stopped: datetime = self.stopped
        return (stopped - self.started).total_seconds()

    @property
    def short_result(self) -> str:
        text = str(self.result)
        return text if len(text) <= 100 else f"{text[:97]}..."

    def group_result(self, failures: bool = False) -> list[Any] | None:
        return self.get_result_group(self.group, failures) if self.group else None

    def group_count(self, failures: bool = False) -> int | None:
        return self.get_group_count(self.group, failures) if self.group else None

    def group_delete(self, tasks: bool = False) -> Any:
        return self.delete_group(self.group, tasks) if self.group else None

    @classmethod
    def get_task(cls, task_id: str) -> Self | None:
        """The row of that id or name."""
        return cls.objects.named(task_id)  # type: ignore[no-any-return] # a manager made at run time

    @classmethod
    def get_result(cls, task_id: str) -> Any:
        """What it returned; of a failure the error, as text."""
        row = cls.get_task(task_id)
        return None if row is None else row.result

    @classmethod
    def get_task_group(cls, group_id: str | None, failures: bool = True) -> TaskQuerySet | None:
        """The rows of a group; with ``failures=False`` without those that failed."""
        if not group_id:
            return None
        rows: TaskQuerySet = cls.objects.of_group(group_id)
        return rows if failures else rows.filter(success=True)

    @classmethod
    def get_result_group(cls, group_id: str | None, failures: bool = False) -> list[Any] | None:
        rows = cls.get_task_group(group_id, failures)
        return None if rows is None else list(rows.values_list("result", flat=True))

    @classmethod
    def get_group_count(cls, group_id: str | None, failures: bool = False) -> int | None:
        """How many have ended; with ``failures=True`` only those that failed."""
        if not group_id:
            return None
        rows = cls.objects.of_group(group_id)
        return int((rows.filter(success=False) if failures else rows).count())

    @classmethod
    def delete_group(cls, group_id: str | None, objects: bool = False) -> Any:
        """Take the group's name off its rows; with ``objects=True`` delete them. Returns what the
        query set returns: the number of rows, or the tuple of ``delete()``."""
        if not group_id:
            return None
        rows = cls.objects.of_group(group_id)
        return rows.delete() if objects else rows.update(group=None)


class Success(Task):
    objects: ClassVar[TaskManager] = TaskManager(success=True)

    class Meta:
        proxy = True
        verbose_name = "successful task"
        ordering = ("-stopped",)


class Failure(Task):
    objects: ClassVar[TaskManager] = TaskManager(success=False)

    class Meta:
        proxy = True
        verbose_name = "failed task"
        ordering = ("-stopped",)
