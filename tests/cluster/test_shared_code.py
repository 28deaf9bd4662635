"""The processes of a cluster share the code that the sentinel has imported before it forks."""

import os
import sys
from pathlib import Path

import pytest

from tests.app.tasks import add
from tests.cluster.clusters import ROOT, SOURCE, running_cluster
from tests.cluster.ends import value_of

NOTE_IMPORTS = '''\
import os
import sys


class Imports:
    """Writes down which process looks for which module, and finds none."""

    def find_spec(self, name, path=None, target=None):
        with open({file!r}, "a") as lines:
            lines.write(f"{{os.getpid()}} {{name}}\\n")


sys.meta_path.insert(0, Imports())
'''


@pytest.mark.postgres
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks the processes")
@pytest.mark.django_db(transaction=True)
def test_processes_import_only_the_code_of_tasks(tmp_path: Path) -> None:
    file = tmp_path / "imports"
    (tmp_path / "sitecustomize.py").write_text(NOTE_IMPORTS.format(file=str(file)))
    environment = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, SOURCE, ROOT)))}
    command = [sys.executable, "-X", "utf8", "-m", "django"]
    with running_cluster(tmp_path, command=command, environment=environment) as cluster:
        crew = cluster.wait_for_crew()
        assert value_of(add.enqueue(1, 2), cluster) == 3
        pids = {str(one.pid) for members in crew.values() for one in members}
        cluster.stop()
    imports = [line.split() for line in file.read_text().splitlines()]
    assert any(pid in pids for pid, _ in imports)
    private = {name for pid, name in imports if pid in pids and not is_of_the_project(name)}
    assert private == set(), "import them in share_code, or each process has its own copy"


def is_of_the_project(module: str) -> bool:
    """Return whether only workers import the module, as or for the tasks of an app."""
    return module.endswith(".tasks") or module.startswith(("tests", "stoker.contrib.django_q"))
