"""The package ``stoker``: its names are loaded on first use and known to type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", stoker.__all__)
def test_every_public_name_is_importable(name: str) -> None:
    value = getattr(stoker, name)
    assert name in ("__version__", "job") or value.__name__ == name
    assert name in dir(stoker)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(stoker.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.asname: str(node.module).removeprefix("stoker.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == stoker._HOMES


def test_version_is_a_number() -> None:
    assert stoker.__version__[0].isdigit()


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tsk'"):
        stoker.tsk  # noqa: B018


def test_importing_stoker_loads_no_other_module() -> None:
    code = (
        "import sys, stoker\n"
        "found = [name for name in sys.modules if name.startswith(('django', 'stoker.'))]\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
