"""Spawned processes, which begin before Django is set up."""

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
