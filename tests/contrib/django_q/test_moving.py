"""Migration of a project from Django Q 2, which runs in its own environment. The project's
migrations have foreign keys to Django Q's tables and create a schedule."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers import environments
from tests.cluster.clusters import ROOT, SOURCE, WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.sqlite, pytest.mark.slow]

FILES = {
    "manage.py": """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "settings.py": """
import importlib.util
SECRET_KEY = "x"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q", "shop"]
Q_CLUSTER = {"name": "shop", "orm": "default", "workers": 1, "timeout": 30, "retry": 60}
""",
    "shop/__init__.py": "",
    "shop/migrations/__init__.py": "",
    "shop/tasks.py": """
def bill(number):
    return f"bill {number}"


def tidy():
    return "tidy"
""",
    "shop/models.py": """
from django.db import models
from django_q.models import Schedule, Task


class Order(models.Model):
    task = models.ForeignKey(Task, null=True, on_delete=models.SET_NULL)
    reminder = models.ForeignKey(Schedule, null=True, on_delete=models.SET_NULL)
""",
}
BY_HAND = """
from django.db import migrations


def add_schedule(apps, schema_editor):
    apps.get_model("django_q", "Schedule").objects.create(
        func="shop.tasks.tidy", name="nightly", schedule_type="D"
    )


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial"), ("django_q", "0017_task_cluster_alter")]
    operations = [migrations.RunPython(add_schedule, migrations.RunPython.noop)]
"""
ORDERS = """
from django_q.tasks import async_task, schedule
from shop.models import Order, Task
schedule("shop.tasks.tidy", name="deleted").delete()
reminder = schedule("shop.tasks.bill", 8, name="reminder", schedule_type="D")
task = Task.objects.create(id="a" * 32, name="first", func="shop.tasks.bill", args=(7,),
    kwargs={}, result="bill 7", success=True, started=reminder.next_run, stopped=reminder.next_run)
Order.objects.create(task=task, reminder=reminder)
async_task("shop.tasks.bill", 9, task_name="waits")
"""
LOOK = """
from stoker.contrib.django_q.models import Schedule, Task
from shop.models import Order
for order in Order.objects.all():
    print(order.task.name, order.task.result, order.reminder.name)
for row in Schedule.objects.order_by("name"):
    print(row.name, row.success())
for name in ("waits",):
    print(name, Task.get_result(name))
"""
APPS = """INSTALLED_APPS = [
    "django.contrib.contenttypes", "stoker", "stoker.contrib.django_q", MORE "shop",
] + (["django_tasks"] if importlib.util.find_spec("django.tasks") is None else [])"""


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = ""
        for name, text in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def manage(self, *arguments: str, fails: bool = False) -> str:
        """Run a command of the project and return its output."""
        done = subprocess.run(
            [self.python, "manage.py", *arguments],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def look(self) -> str:
        """Return the rows of the tables."""
        return self.manage("shell", "-c", LOOK)

    @contextmanager
    def cluster(self) -> Iterator[None]:
        """Run `qcluster` meanwhile, and stop it afterwards."""
        process = subprocess.Popen(
            [self.python, "manage.py", "qcluster"],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
            process.terminate()
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()
            process.wait()

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(SOURCE), str(ROOT)] if self.python == sys.executable else [])
        own = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
        return {**own, "PYTHONPATH": path, "PYTHONWARNINGS": "default"}

    def use_stoker(self, more: str = '"stoker.contrib.django_q.history",') -> None:
        """Change the imports and INSTALLED_APPS as the guide says."""
        self.python = sys.executable
        for path in (self.folder / "shop").glob("*.py"):
            text = path.read_text().replace("\nfrom django_q", "\nfrom stoker.contrib.django_q")
            path.write_text(text)
        settings = self.folder / "settings.py"
        was = r"INSTALLED_APPS = .*?\]\n"
        text = re.sub(was, lambda _: f"{APPS}\n", FILES["settings.py"])
        settings.write_text(text.replace("MORE", more))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Create a project with migrations and rows made by Django Q 2."""
    found = Project(tmp_path)
    try:
        found.python = environments.python_of("django_q2")
    except environments.PeerUnavailableError as error:
        pytest.skip(f"There is no Django Q 2 here: {error}")
    found.manage("makemigrations", "shop")
    (tmp_path / "shop/migrations/0002_nightly.py").write_text(BY_HAND)
    found.manage("migrate")
    found.manage("shell", "-c", ORDERS)
    return found


def test_project_migrates_with_its_rows(project: Project) -> None:
    project.use_stoker()
    project.manage("migrate", "stoker_django_q")
    told = project.manage("stoker", "import_django_q")
    assert "django_q_schedule: 2 rows, 2 copied" in told
    assert "django_q_task: 1 rows, 1 copied" in told
    project.manage("makemigrations", "shop")
    project.manage("migrate")
    assert "No changes" in project.manage("makemigrations", "--check")
    project.manage("check")
    with project.cluster():
        wait_for(lambda: "nightly True\nreminder True\nwaits bill 9" in project.look())
    assert project.look().splitlines()[-4] == "first bill 7 reminder"


def test_new_database_is_migrated_without_django_q(project: Project) -> None:
    """The database of the project's own tests is migrated like this."""
    project.use_stoker()
    project.manage("migrate", "stoker_django_q")
    project.manage("makemigrations", "shop")
    (project.folder / "db.sqlite3").unlink()
    project.manage("migrate")
    assert "nightly None" in project.look()
    with project.cluster():
        wait_for(lambda: "nightly True" in project.look())


def test_missing_history_app_is_named_before_django_raises(project: Project) -> None:
    project.use_stoker(more="")
    for command in ("makemigrations", "migrate"):
        told = project.manage(command, fails=True)
        assert "NodeNotFoundError" not in told
        assert "0002_nightly.py refers to the app 'django_q'" in told
        assert "Add 'stoker.contrib.django_q.history' there" in told
