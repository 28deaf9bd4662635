"""The start and the end of a process of the cluster."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit


def test_first_function_of_a_process_can_be_imported_before_django_is_set_up() -> None:
    subprocess.run(
        [sys.executable, "-c", "import stoker.cluster.process"],
        env={"DJANGO_SETTINGS_MODULE": "tests.settings.sqlite"},
        check=True,
    )


def test_process_without_standard_output_ends_with_its_code() -> None:
    """Python has none if the descriptor was closed: sys.stdout is None."""
    code = "import sys; from stoker.cluster.process import leave; sys.stdout = None; leave(3)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings.sqlite"},
        check=False,
    )
    assert ended.returncode == 3
