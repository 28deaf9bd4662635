"""Without the extra, the API raises an error on import, and nothing else imports its libraries."""

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


@pytest.mark.parametrize("code", [WITHOUT, WITH], ids=["not installed", "not asked for"])
def test_other_modules_do_not_import_the_apis_libraries(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
