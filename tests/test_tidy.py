"""What keeps the code easy to read: the longest of each kind counts, not the average."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import noxfile

from tests.conftest import CHOSEN_ON_MARIADB, HOMES
from tests.planted.mistake import Mistake
from tests.planted.mistakes import MISTAKES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stoker"
FILES = sorted(SOURCE.rglob("*.py"))
# Django writes the migrations, and nobody reads them for pleasure.
WRITTEN_BY_HAND = [path for path in FILES if "migrations" not in path.parts]

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 50
MOST_PARAMETERS = 6
NAMES_THAT_SAY_NOTHING = {"utils", "helpers", "common", "manager", "handler"}

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


def test_files_are_short() -> None:
    """A file holds one whole idea: at most 500 lines."""
    lengths = {path: len(path.read_text().splitlines()) for path in WRITTEN_BY_HAND}
    long = [f"{_name(p)}: {n} lines" for p, n in lengths.items() if n > MOST_LINES_OF_A_FILE]
    assert not long, _list(long)


def test_functions_are_short() -> None:
    """A function is seen at one glance. Docstrings do not count: explaining must cost nothing."""
    long = [
        f"{place}: {lines} lines"
        for place, function in _functions()
        if (lines := _lines_of(function)) > MOST_LINES_OF_A_FUNCTION
    ]
    assert not long, _list(long)


def test_functions_take_few_parameters() -> None:
    """What a caller must think of. Optional keywords are not counted: he names those he wants."""
    many = [
        f"{place}: {count} parameters"
        for place, function in _functions()
        if (count := _parameters_of(function)) > MOST_PARAMETERS
    ]
    assert not many, _list(many)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_planted_mistakes_can_still_be_made(mistake: Mistake) -> None:
    """The functions and the nodes that they change are there, and so are the tests."""
    for change in mistake.changes:
        path, text = change.made_in(SOURCE)
        assert text != path.read_text()
    assert (ROOT / mistake.tests).is_file()


@pytest.mark.parametrize(
    ("parts", "elsewhere"),
    [
        pytest.param(noxfile.QUICK, noxfile.LEFT_TO_TEST_ALL, id="make test"),
        pytest.param(noxfile.ALL, (), id="make test-all"),
    ],
)
def test_every_module_of_tests_is_in_a_part(
    parts: Sequence[noxfile.Part], elsewhere: Sequence[str]
) -> None:
    """noxfile.py lists folders: a new one must not be forgotten."""
    paths = [ROOT / path for part in (noxfile.UNIT, *parts) for path in part.paths]
    paths += [ROOT / path for path in elsewhere]
    forgotten = [
        _name(module)
        for module in sorted((ROOT / "tests").rglob("test_*.py"))
        if not any(module == path or path in module.parents for path in paths)
    ]
    assert not forgotten, _list(forgotten)


def test_folders_with_a_home_exist() -> None:
    """tests/conftest.py names folders and modules: a new name must be changed there, too."""
    paths = [*(f"tests/{folder}" for folder in HOMES), *CHOSEN_ON_MARIADB]
    gone = [path for path in paths if not (ROOT / path).exists()]
    assert not gone, _list(gone)


def test_names_of_files_say_something() -> None:
    """Anything could be in utils.py, and soon would be."""
    empty = [_name(path) for path in FILES if path.stem.rstrip("s") in _singular()]
    assert not empty, _list(empty)


def test_nothing_is_left_to_do() -> None:
    """What is to be done stands in an issue, where somebody looks for it."""
    note = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
    found = [
        f"{_name(path)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if note.search(line)
    ]
    assert not found, _list(found)


def test_exceptions_from_the_tools_are_explained() -> None:
    """`noqa: CODE - reason` and `type: ignore[code]  # reason`: the next reader must know why."""
    bare = re.compile(
        r"#\s*noqa(?!:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*\s+[-#]\s*\w)"
        r"|#\s*type:\s*ignore(?!\[[\w-]+(?:,\s*[\w-]+)*\]\s*[-#]\s*\w)"
    )
    found = [
        f"{_name(path)}:{comment.start[0]}: {comment.string}"
        for path in FILES
        for comment in _comments(path)
        if bare.search(comment.string)
    ]
    assert not found, _list(found)


def test_nobody_uses_his_own_front_door() -> None:
    """`stoker/__init__.py` is for users. Inside, a name comes from the module that defines it."""
    found = [
        f"{_name(path)}: {ast.unparse(node)}"
        for path in FILES
        if path != SOURCE / "__init__.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if _comes_through_the_front_door(node, path)
    ]
    assert not found, _list(found)


def test_only_engines_ask_which_database_it_is() -> None:
    """What databases do differently is a method of the engine in `store/engines/`."""
    asks = re.compile(r"\.vendor\b|\.mysql_is_mariadb\b")
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path in WRITTEN_BY_HAND
        if SOURCE / "store" / "engines" not in path.parents
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if asks.search(line)
    ]
    assert not found, _list(found)


def test_no_machine_is_mentioned() -> None:
    """The repository speaks of the project: a path of somebody's machine helps nobody."""
    path_of_a_machine = re.compile(r"(?<![\w.])/(?:root|work)/")
    found = [
        f"{_name(path)}:{number}: {line.strip()[:80]}"
        for path, text in _tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if path_of_a_machine.search(line)
    ]
    assert not found, _list(found)


def test_pins_name_no_registry() -> None:
    """Where packages come from is for whoever installs them to say."""
    found = [
        f"{_name(path)}: {line}"
        for path in (ROOT / "requirements").iterdir()
        for line in path.read_text().splitlines()
        if "://" in line or line.startswith("-")
    ]
    assert not found, _list(found)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _list(lines: list[str]) -> str:
    return "\n  ".join(["", *lines])


def _singular() -> set[str]:
    return {name.rstrip("s") for name in NAMES_THAT_SAY_NOTHING}


def _functions() -> Iterator[tuple[str, AnyFunction]]:
    for path in WRITTEN_BY_HAND:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, AnyFunction):
                yield f"{_name(path)}:{node.lineno} {node.name}", node


def _lines_of(function: AnyFunction) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def _parameters_of(function: AnyFunction) -> int:
    taken = function.args
    positional = [parameter.arg for parameter in (*taken.posonlyargs, *taken.args)]
    if positional[:1] in (["self"], ["cls"]):
        positional.pop(0)
    return len(positional) + sum(default is None for default in taken.kw_defaults)


def _comments(path: Path) -> Iterator[tokenize.TokenInfo]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token


def _comes_through_the_front_door(node: ast.AST, path: Path) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == "stoker" for alias in node.names)
    if not isinstance(node, ast.ImportFrom):
        return False
    # `from . import x` in a module of the package's own folder is the same door.
    home = path.parents[node.level - 1] if node.level else None
    is_door = node.module is None and home == SOURCE if home else node.module == "stoker"
    modules = {entry.stem for entry in SOURCE.iterdir()}
    return is_door and any(alias.name not in modules for alias in node.names)


def _tracked_texts() -> Iterator[tuple[Path, str]]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("git does not know which files belong to the project")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        try:
            yield path, path.read_text()
        except (FileNotFoundError, UnicodeDecodeError):  # deleted just now, or not a text
            continue
