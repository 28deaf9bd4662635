"""``Task``: the outcome of a job of the shim.

A row is written in the transaction that records the job's end, and kept until ``save_limit`` or a
user deletes it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Self
from uuid import UUID, uuid4

from django.db import models
from django.utils import timezone

from stoker.conf import Settings
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.spec import SEALED, name_of
from stoker.exceptions import PackageError
from stoker.jobs.package import Package, sealer_for
from stoker.models import Attempt, Job
from stoker.store.written import moment
from stoker.workflows.deliver import Ended

from .sealed import Raw, SealedField

LONGEST_ID = 32
COLUMNS = (
    "id", "name", "func", "hook", "args", "kwargs", "result", "group", "cluster", "started",
    "stopped", "success", "attempt_count",
)  # fmt: skip


def new_id() -> str:
    return uuid4().hex


class TaskQuerySet(models.QuerySet["Task"]):
    def of_group(self, group_id: str | None) -> TaskQuerySet:
        return self.filter(group=group_id)

    def named(self, task_id: Any) -> Task | None:
        """Return the row with that id or name; the newest of several with the same name."""
        text = str(task_id)
        if len(text.replace("-", "")) == LONGEST_ID:
            row = self.filter(pk=text.replace("-", "")).first()
            if row is not None:
                return row
        return self.filter(name=text).order_by("-stopped").first()


class TaskManager(models.Manager.from_queryset(TaskQuerySet)):  # type: ignore[misc] # made at run time
    """Uses the database that contains the shim's tables.

    Args:
        success: only rows with this value; None = all.
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
    """The job's id without hyphens."""
    name = models.CharField(max_length=100, editable=False)
    func = models.CharField(max_length=256)
    hook = models.CharField(max_length=256, null=True)  # noqa: DJ001 - as Django Q has it
    args = SealedField(null=True)
    kwargs = SealedField(null=True)
    result = SealedField(null=True)
    """Return value, or the error as text."""
    group = models.CharField(max_length=100, editable=False, null=True)  # noqa: DJ001 - as above
    cluster = models.CharField(max_length=100, default="", null=True, blank=True)  # noqa: DJ001 - as above
    started = models.DateTimeField(editable=False, default=timezone.now)
    """Time of the enqueue, as in Django Q."""
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
        """Return the row with that id or name."""
        return cls.objects.named(task_id)  # type: ignore[no-any-return] # a manager made at run time

    @classmethod
    def get_result(cls, task_id: str) -> Any:
        """Return the return value of a task, or the error as text if it failed."""
        row = cls.get_task(task_id)
        return None if row is None else row.result

    @classmethod
    def get_task_group(cls, group_id: str | None, failures: bool = True) -> TaskQuerySet | None:
        """Return the rows of a group; with ``failures=False`` only the successful ones."""
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
        """Return the number of finished tasks of a group; with ``failures=True``, the number of
        failed ones."""
        if not group_id:
            return None
        rows = cls.objects.of_group(group_id)
        return int((rows.filter(success=False) if failures else rows).count())

    @classmethod
    def delete_group(cls, group_id: str | None, objects: bool = False) -> Any:
        """Remove the group's name from its rows; with ``objects=True`` delete them.

        Returns the result of the query set: the number of rows, or the tuple of ``delete()``.
        """
        if not group_id:
            return None
        rows = cls.objects.of_group(group_id)
        return rows.delete() if objects else rows.update(group=None)

    @classmethod
    def of_job(cls, job_id: str, columns: Mapping[str, Any] | None = None) -> Self:
        """Return the Task of a finished job. If no row of it is kept, build it from the columns,
        or from the job if there are none.

        Args:
            columns: those of ``sealed_columns`` at the end of the job.

        Raises:
            Task.DoesNotExist: there are no columns, and neither the row nor the job is kept.
        """
        row: Self | None = cls.objects.filter(pk=job_id).first()
        if row is not None:
            return row
        if columns is not None:
            sealed = {name: Raw(columns[name]) for name in SEALED}
            return cls(**{**columns, **sealed}).open_values()
        jobs = Job.objects.using(conf.database())
        job = jobs.filter(pk=UUID(job_id)).exclude(status=None).first()
        if job is None:
            raise cls.DoesNotExist(f"There is no task {job_id} (any more).")
        value = None if job.value is None else bytes(job.value)
        ended = Ended(job.pk, str(job.status), job.attempts, value, "", job.reason)
        settings = conf.settings()
        package = sealer_for(settings).open(bytes(job.package))
        built = task_row(settings, ended, package).open_values()
        built.stopped = job.finished_at or built.stopped
        return built  # type: ignore[return-value] # no subclass is asked

    def sealed_columns(self) -> dict[str, Any]:
        """Return the columns of this row, those with sealed values as bytes."""
        sealer = sealer_for(conf.settings())
        columns = {name: getattr(self, name) for name in COLUMNS}
        for name in SEALED:
            value = columns[name]
            columns[name] = bytes(value) if isinstance(value, Raw) else sealer.seal_value(value)
        return columns

    def open_values(self) -> Self:
        """Replace the sealed values of this row by their contents, and return the row."""
        sealer = sealer_for(conf.settings())
        for name in SEALED:
            value = getattr(self, name)
            if isinstance(value, Raw):
                try:
                    setattr(self, name, sealer.open_value(value))
                except PackageError as error:
                    setattr(self, name, str(error))
        return self


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


def task_row(settings: Settings, ended: Ended, package: Package) -> Task:
    spec = spec_in(package)
    # Pickled arguments stay bytes, because this process must not unpickle them.
    args, kwargs = (Raw(one) if isinstance(one, bytes) else one for one in package.args[-1])
    result: Any = Raw(ended.value) if ended.value is not None else None
    if not ended.has_succeeded:
        result = _story(settings, ended)
    return Task(
        id=spec.get("id") or ended.job_id.hex,
        name=name_of(spec, ended.job_id),
        func=spec["func"],
        hook=spec.get("hook"),
        args=args,
        kwargs=kwargs,
        result=result,
        group=spec.get("group"),
        cluster=spec.get("cluster") or package.queue,
        started=moment(package.enqueued_at),
        stopped=moment(time.time()),
        success=ended.has_succeeded,
        attempt_count=ended.attempt,
    )


def spec_in(package: Package) -> dict[str, Any]:
    for one in package.args:
        if isinstance(one, dict) and "func" in one:
            return one
    raise PackageError(f"The package of job {package.job_id} does not belong to the shim.")


def _story(settings: Settings, ended: Ended) -> str:
    """Return the message and traceback of a failure in Django Q's format."""
    attempts = Attempt.objects.using(settings.database)
    last = attempts.filter(job_id=ended.job_id).order_by("-number").first()
    traceback = last.traceback if last is not None else ""
    message = ended.message or (last.message if last is not None else "") or ended.exception_class
    return f"{message} : {traceback}" if traceback else message
