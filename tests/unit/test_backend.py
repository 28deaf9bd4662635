"""The backend: cheap to make, lenient at import, strict at its first use."""

import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from stoker.backend import StokerBackend
from stoker.compat import (
    BaseTaskBackend,
    DjangoTaskResult,
    InvalidTask,
    TaskResultStatus,
    task_backends,
)
from stoker.exceptions import ConfigurationError
from stoker.jobs.results import Result
from stoker.jobs.states import JobState, Progress
from stoker.tasks.decorator import Task, task

from tests.app import tasks

pytestmark = pytest.mark.unit

BACKEND = "stoker.backend.StokerBackend"
WRONG: list[dict[str, Any]] = [
    {"OPTIONS": {"WORKERS": "many"}},
    {"OPTIONS": {"NO_SUCH": 1}},
    {"OPTIONS": ["WORKERS"]},
    {"OPTIONS": None},
    {"QUEUES": None},
    {"QUEUES": "default"},
    {"QUEUES": [1]},
    {"QUEUES": ["x" * 101]},
]


def function() -> None: ...


def takes_one(value: object) -> None: ...


def test_backend_supports_every_feature() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, StokerBackend)
    assert isinstance(backend, BaseTaskBackend)
    assert backend.task_class is Task
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_setting_does_not_prevent_task_definition(wrong: dict[str, Any]) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, **wrong}}):
        made = task(function)
        assert made.backend == "default"


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_setting_is_reported_at_the_first_use(wrong: dict[str, Any]) -> None:
    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, **wrong}}),
        pytest.raises(
            ConfigurationError, match=r'TASKS\["default"\]\["(OPTIONS|QUEUES)"\]'
        ) as caught,
    ):
        task(function).enqueue()
    assert isinstance(caught.value, ImproperlyConfigured)


def test_backend_has_the_settings_of_its_parameters() -> None:
    backend = StokerBackend("elsewhere", {"OPTIONS": {"MAX_ATTEMPTS": 9}})
    assert (backend.settings.alias, backend.settings.max_attempts) == ("elsewhere", 9)


def test_settings_are_shared_by_threads() -> None:
    first = StokerBackend("default", dict(task_backends["default"]._params))
    assert first.settings is task_backends["default"].settings


LOADS = """
import sys
from django.conf import settings
settings.configure(
    TASKS={"default": {"BACKEND": "stoker.backend.StokerBackend"}},
    DATABASES={"default": {"ENGINE": "no.such.engine"}},
    INSTALLED_APPS=["stoker"],
)
from stoker import exponential, task
@task(max_attempts=3, backoff=exponential())
def mine(): ...
loaded = [name for name in sys.modules if name.startswith("stoker.")]
forbidden = tuple(f"stoker.{part}" for part in ("models", "brokers", "jobs"))
found = [name for name in loaded if name.startswith(forbidden)]
assert not found, found
"""


def test_task_definition_loads_no_models() -> None:
    """Django imports modules of tasks before its models are ready."""
    script = [sys.executable, "-W", "error", "-c", LOADS]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NOT_INSTALLED = """
import django
from django.conf import settings
settings.configure(TASKS={"default": {"BACKEND": "stoker.backend.StokerBackend"}}, SECRET_KEY="x")
django.setup()
from stoker import task
@task
def mine(): ...
try:
    mine.enqueue()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_missing_installed_app_is_reported_at_the_first_use() -> None:
    script = [sys.executable, "-c", NOT_INSTALLED]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("ConfigurationError"), done
    assert "'stoker' to INSTALLED_APPS" in done.stdout


# -- what Django's own tests of backends expect ---------------------------------------------------


def test_queue_that_is_not_listed_is_refused_in_djangos_words() -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}):
        made = task(function)
        with pytest.raises(InvalidTask, match=r"Queue 'queue-2' is not valid for backend\."):
            made.using(queue_name="queue-2")


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_priority_out_of_range_is_refused_in_djangos_words(priority: Any) -> None:
    words = r"priority must be a whole number between -100 and 100\."
    with pytest.raises(InvalidTask, match=words):
        task(function).using(priority=priority)


def test_unsupported_argument_is_a_type_error_in_djangos_words() -> None:
    with pytest.raises(TypeError, match=r"Unsupported type"):
        task(takes_one).enqueue(object())


def test_asdict_shows_the_fields_of_a_django_result_and_no_private_ones() -> None:
    result: Any = Result(
        task=tasks.add,
        id="1",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=[1],
        kwargs={},
        backend="default",
        errors=[],
        worker_ids=[],
        _first_progress=Progress(None, JobState.DEFERRED),
    )
    names = {one.name for one in dataclasses.fields(DjangoTaskResult)}
    assert set(dataclasses.asdict(result)) == {*names, "was_duplicate"}
    assert result.state == copy.deepcopy(result).state == JobState.DEFERRED
    assert pickle.loads(pickle.dumps(result)) == result
    assert result._with(was_duplicate=True).state == JobState.DEFERRED


STATE_OF_A_RESULT = (
    b"\x80\x02cstoker.jobs.results\nResult\nq\x00)\x81q\x01}q\x02(X\x04\x00\x00\x00taskq\x03NX\x02\x00"
    b"\x00\x00idq\x04X$\x00\x00\x000198c0de-0000-7000-8000-000000000001q\x05X\x06\x00\x00\x00statusq"
    b"\x06cdjango.tasks.base\nTaskResultStatus\nq\x07X\x05\x00\x00\x00READYq\x08\x85q\tRq\nX\x0b\x00"
    b"\x00\x00enqueued_atq\x0bNX\n\x00\x00\x00started_atq\x0cNX\x0b\x00\x00\x00finished_atq\rNX\x11"
    b"\x00\x00\x00last_attempted_atq\x0eNX\x04\x00\x00\x00argsq\x0f]q\x10(K\x01K\x02eX\x06\x00\x00"
    b"\x00kwargsq\x11}q\x12X\x07\x00\x00\x00backendq\x13X\x07\x00\x00\x00defaultq\x14X\x06\x00\x00"
    b"\x00errorsq\x15]q\x16X\n\x00\x00\x00worker_idsq\x17]q\x18X\r\x00\x00\x00_return_valueq\x19NX"
    b"\r\x00\x00\x00was_duplicateq\x1a\x89X\x0b\x00\x00\x00_commitmentq\x1bNX\t\x00\x00\x00_progressq"
    b"\x1ccstoker.jobs.states\nProgress\nq\x1d)\x81q\x1e]q\x1f(Ncstoker.jobs.states\nJobState\nq X"
    b'\x08\x00\x00\x00DEFERREDq!\x85q"Rq#)NNebX\x10\x00\x00\x00_running_attemptq$K\x00ub.'
)
"""A deferred job's result, without its task, as pickled before ``Result.__reduce__`` existed."""
FIELDS_OF_A_RESULT = (
    b"\x80\x02cstoker.jobs.results\nResult\nq\x00)\x81q\x01]q\x02(NX$\x00\x00\x000198c0de-0000-7000-"
    b"8000-000000000001q\x03c__builtin__\ngetattr\nq\x04cdjango.tasks.base\nTaskResultStatus\nq\x05X"
    b"\x05\x00\x00\x00READYq\x06\x86q\x07Rq\x08NNNN]q\t(K\x01K\x02e}q\nX\x07\x00\x00\x00defaultq\x0b]"
    b"q\x0c]q\rN\x89eb."
)
"""This result as pickled by Python 3.11.2, which wrote only the values of the fields."""


@pytest.mark.parametrize(
    ("data", "state"), [(STATE_OF_A_RESULT, "DEFERRED"), (FIELDS_OF_A_RESULT, "READY")]
)
def test_result_that_an_older_version_pickled_is_read(data: bytes, state: str) -> None:
    module = TaskResultStatus.__module__.encode()  # depends on the version of Django
    result = pickle.loads(data.replace(b"django.tasks.base", module))
    assert (result.id, result.status) == ("0198c0de-0000-7000-8000-000000000001", "READY")
    assert (result.args, result.backend, result.worker_ids) == ([1, 2], "default", [])
    assert (result.state, result.was_duplicate) == (state, False)
