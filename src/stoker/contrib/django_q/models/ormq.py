"""``OrmQ``: the waiting and running jobs, in the form of Django Q's table of packages."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import F

from stoker.contrib.django_q import conf
from stoker.contrib.django_q.spec import as_dict, name_of, unpacked
from stoker.exceptions import PackageError
from stoker.jobs.cancel import cancel
from stoker.jobs.package import sealer_for
from stoker.models import Claimed, Job
from stoker.values.ticks import as_moment

NO_OPTIONS = ("id", "name", "group", "func", "args", "kwargs")


class OrmQQuerySet(models.QuerySet["OrmQ"]):
    def delete(self) -> tuple[int, dict[str, int]]:
        """Cancel these jobs: waiting ones at once, running ones as soon as they notice the
        request."""
        count = sum(row.cancel() for row in self)
        return count, {OrmQ._meta.label: count}


class OrmQManager(models.Manager.from_queryset(OrmQQuerySet)):  # type: ignore[misc] # made at run time
    def get_queryset(self) -> OrmQQuerySet:
        rows: OrmQQuerySet = super().get_queryset()
        rows = rows.using(conf.database()) if self._db is None else rows
        return rows.filter(status=None).annotate(key=F("queue"), payload=F("package"))


class OrmQ(Job):
    """A row of Stoker's table of jobs. ``key`` is its queue, ``payload`` its package."""

    objects: ClassVar[OrmQManager] = OrmQManager()

    class Meta:
        proxy = True
        verbose_name = "queued task"
        ordering = ("id",)

    @property
    def lock(self) -> datetime | None:
        """End of the lease; None = the job waits."""
        claimed = Claimed.objects.using(conf.database()).filter(pk=self.pk).first()
        return None if claimed is None else as_moment(claimed.leased_until_us)

    def cancel(self) -> bool:
        """Withdraw the job, or ask it to stop. Return False if it has ended."""
        return cancel(conf.settings(), Job(pk=self.pk, queue=self.queue, task=self.task_path), "")

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        count = int(self.cancel())
        return count, {self._meta.label: count}

    @property
    def task_path(self) -> str:
        """Dotted path of the job's task. For jobs of the shim it is the path of the function."""
        return str(Job._meta.get_field("task").value_from_object(self))

    def call(self) -> dict[str, Any]:
        """Return the call as in Django Q's signals, or the task if it is not a job of the shim.

        Without its arguments and its given name, if the package cannot be opened here.
        """
        try:
            package = sealer_for(conf.settings()).open(bytes(self.package))
        except PackageError:
            spec = {"func": self.task_path}
            return {"id": self.pk.hex, "name": name_of(spec, self.pk), **spec}
        if package.args and isinstance(package.args[0], dict) and "func" in package.args[0]:
            args, kwargs = unpacked(conf.settings(), package.args[-1])
            return as_dict(package.args[0], self.pk, args, kwargs)
        known = {"id": self.pk.hex, "name": package.task, "func": package.task}
        return {**known, "args": package.args, "kwargs": package.kwargs}

    def task_id(self) -> str:
        return str(self.call()["id"])

    def name(self) -> str:
        return str(self.call()["name"])

    def func(self) -> str:
        return str(self.call()["func"])

    def group(self) -> str | None:
        return self.call().get("group")

    def args(self) -> Any:
        """Positional arguments; None = the package cannot be opened here."""
        return self.call().get("args")

    def kwargs(self) -> Any:
        """Keyword arguments; None = the package cannot be opened here."""
        return self.call().get("kwargs")

    def q_options(self) -> dict[str, Any]:
        """Options of the call, as in Django Q's signals."""
        return {key: value for key, value in self.call().items() if key not in NO_OPTIONS}
