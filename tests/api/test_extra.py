"""Without the extra there is no API, and nothing else misses it."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules["ninja"] = None
sys.modules["pydantic"] = None
import django
django.setup()
from django.core.management import call_command, load_command_class
import stoker.testing, stoker.dead_letters, stoker.operations.clusters
call_command("check", "--fail-level", "ERROR")
try:
    import stoker.api.urls
except ModuleNotFoundError as error:
    assert str(error) == "stoker.api needs django-ninja: pip install 'django-stoker[api]'.", error
else:
    raise AssertionError("it was imported")
"""
WITH = """
import sys
import django
django.setup()
import stoker.testing, stoker.dead_letters.service, stoker.operations.clusters
import stoker.management.commands.stoker
assert not {"ninja", "pydantic"} & set(sys.modules)
"""


@pytest.mark.sqlite
@pytest.mark.parametrize("code", [WITHOUT, WITH], ids=["not installed", "not asked for"])
def test_nobody_else_imports_the_library(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
