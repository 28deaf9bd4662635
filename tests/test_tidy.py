"""Limits that keep the code easy to read: the largest of each kind counts, not the average."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from django.db.migrations.loader import MigrationLoader

import noxfile

from tests import structure
from tests.conftest import CHOSEN_ON_MARIADB, HOMES
from tests.planted.mistake import Mistake
from tests.planted.mistakes import MISTAKES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stoker"
FILES = sorted(SOURCE.rglob("*.py"))
# Django writes the migrations.
WRITTEN_BY_HAND = [path for path in FILES if "migrations" not in path.parts]

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 50
MOST_PARAMETERS = 6
NAMES_THAT_SAY_NOTHING = {"utils", "helpers", "common", "manager", "handler"}

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef

MOST_IMPORTS_IN_FUNCTIONS = 25
SLICES = {
    "brokers/disque/nodes.py": "the nodes of a Disque cluster, without its messages",
    "brokers/mongodb/documents.py": "the format of documents",
    "brokers/orm/claim.py": "the claim, which other brokers do not have",
    "brokers/redis/broker.py": "one server, named in ADAPTERS; slots.py has several",
    "brokers/redis/forms.py": "the form of jobs, leases and results: with the broker 640 lines",
    "brokers/sqs/queues.py": "the queues of SQS, without their messages",
    "cluster/monitor/unsettled.py": "settlements with a broker: with the monitor 540 lines",
    "cluster/pusher/claims.py": "calls to the store: with the handing over 900 lines",
    "cluster/worker/workload.py": "jobs, reports and their line: with the worker 740 lines",
    "inspect/doctor/clusters.py": "a part of the checks: the files together have 930 lines",
    "inspect/why/waiting.py": "a part of the answers: with look.py 730 lines",
    "locks/holding.py": "the renewal of leases: with the public object 620 lines",
    "reporters/prometheus.py": "a reporter, loaded only if it is configured",
    "workflows/start.py": "the start of steps: with their advance 540 lines",
}
"""Modules with one importer in their own folder, each with the reason for which it is not a part of
that importer."""

SHARED_CLASS_NAMES = {
    "Failure": "a failed attempt, and a model of Django Q's",
    "OrmQ": "a model of Django Q's, and its historical state",
    "Schedule": "our model, and Django Q's",
    "Success": "a model of Django Q's, and its historical state",
    "Task": "the decorated function, and a model of Django Q's",
}
"""Class names that exist more than once, each with the public names that it serves. Users import
them by these names."""

STILTED = (
    "whoever", "somebody", "nobody", "everybody", "who has", "who is", "who had", "who finds",
    "who wants", "who waits", "who sends", "who asks", "who adds", "who dies", "who looks",
    "who knows", "who keeps", "who takes", "what it has", "what it is given", "what comes of",
    "what became of", "what is to be", "what there is to", "so many", "so long as", "so often",
    "as often as", "sign of life", "signs of life", "by itself", "by themselves", "told of",
    "is told", "come to its end", "carries on", "carried on", "carry on", "sent again",
    "tried again", "given back", "gives back", "to be seen to", "look after", "looks after",
    "looked after",
)  # fmt: skip
STILTED_PHRASE = re.compile(rf"\b(?:{'|'.join(STILTED)})\b", re.IGNORECASE)
STILTED_BEGINNING = re.compile(r"(?:Those|One that|Of|As|The same|But|Also|Not|Where|Who)\b")
"""Phrases and beginnings that no docstring, message or page may have."""


def test_files_are_short() -> None:
    """A file holds one whole idea: at most 500 lines."""
    lengths = {path: len(path.read_text().splitlines()) for path in WRITTEN_BY_HAND}
    long = [f"{_name(p)}: {n} lines" for p, n in lengths.items() if n > MOST_LINES_OF_A_FILE]
    assert not long, _list(long)


def test_functions_are_short() -> None:
    """A function fits on one screen. Docstrings do not count."""
    long = [
        f"{place}: {lines} lines"
        for place, function in _functions()
        if (lines := _lines_of(function)) > MOST_LINES_OF_A_FUNCTION
    ]
    assert not long, _list(long)


def test_functions_take_few_parameters() -> None:
    """Only required parameters count."""
    many = [
        f"{place}: {count} parameters"
        for place, function in _functions()
        if (count := _parameters_of(function)) > MOST_PARAMETERS
    ]
    assert not many, _list(many)


def test_migrations_form_one_line() -> None:
    """Two changes that are merged may each bring a migration of the same number."""
    assert MigrationLoader(None).detect_conflicts() == {}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_planted_mistakes_can_still_be_made(mistake: Mistake) -> None:
    """The functions and nodes that they change exist, and so do their tests."""
    for change in mistake.changes:
        change.check(SOURCE)
    tests = [
        one.name for one in structure.nodes_of(ROOT / mistake.tests) if isinstance(one, AnyFunction)
    ]
    chosen = re.findall(r"\w+", mistake.words)
    assert not chosen or any(word in name for word in chosen for name in tests)


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


def test_folders_named_in_conftest_exist() -> None:
    """tests/conftest.py names folders and modules: they must be renamed there, too."""
    paths = [*(f"tests/{folder}" for folder in HOMES), *CHOSEN_ON_MARIADB]
    gone = [path for path in paths if not (ROOT / path).exists()]
    assert not gone, _list(gone)


def test_file_names_are_specific() -> None:
    """A file like utils.py collects everything."""
    empty = [_name(path) for path in FILES if path.stem.rstrip("s") in _singular()]
    assert not empty, _list(empty)


def test_source_has_no_todo_notes() -> None:
    """Open work belongs in an issue."""
    note = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
    found = [
        f"{_name(path)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if note.search(line)
    ]
    assert not found, _list(found)


def test_exceptions_from_the_tools_have_a_reason() -> None:
    """`noqa: CODE - reason` and `type: ignore[code]  # reason`: the next reader must know why."""
    bare = re.compile(
        r"#\s*noqa(?!:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*\s+[-#]\s*\w)"
        r"|#\s*type:\s*ignore(?!\[[\w-]+(?:,\s*[\w-]+)*\]\s*[-#]\s*\w)"
    )
    found = [
        f"{_name(path)}:{comment.start[0]}: {comment.string}"
        for path in FILES
        if bare.search(path.read_text())  # quicker than to find the comments of each file
        for comment in _comments(path)
        if bare.search(comment.string)
    ]
    assert not found, _list(found)


def test_modules_do_not_import_names_from_the_package_root() -> None:
    """`stoker/__init__.py` is for users. Inside, a name comes from the module that defines it."""
    found = [
        f"{_name(path)}: {ast.unparse(node)}"
        for path in FILES
        if path != SOURCE / "__init__.py"
        for node in structure.nodes_of(path)
        if _comes_through_the_front_door(node, path)
    ]
    assert not found, _list(found)


def test_only_engines_ask_which_database_it_is() -> None:
    """Differences between databases are methods of the engine in `store/engines/`."""
    asks = re.compile(r"\.vendor\b|\.mysql_is_mariadb\b")
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path in WRITTEN_BY_HAND
        if SOURCE / "store" / "engines" not in path.parents
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if asks.search(line)
    ]
    assert not found, _list(found)


def test_no_path_of_a_machine_is_mentioned() -> None:
    """Paths of one machine are useless on others."""
    path_of_a_machine = re.compile(r"(?<![\w.])/(?:root|work)/")
    found = [
        f"{_name(path)}:{number}: {line.strip()[:80]}"
        for path, text in _tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if path_of_a_machine.search(line)
    ]
    assert not found, _list(found)


def test_pins_name_no_registry() -> None:
    """Users choose the source of the packages."""
    found = [
        f"{_name(path)}: {line}"
        for path in (ROOT / "requirements").iterdir()
        for line in path.read_text().splitlines()
        if "://" in line or line.startswith("-")
    ]
    assert not found, _list(found)


def test_no_module_is_in_an_import_circle() -> None:
    """Imports inside functions count: they hide a circle, and do not remove it."""
    assert not structure.circles(), _list(structure.circles())


def test_imports_inside_functions_are_few() -> None:
    """Their number may only sink."""
    _, inside = structure.imports()
    assert len(inside) <= MOST_IMPORTS_IN_FUNCTIONS, _list(inside)


def test_module_with_one_importer_beside_it_has_a_reason() -> None:
    """Such a module is a slice: fold it into its importer, or list it with a reason."""
    slices = structure.slices()
    found = [f"{name} <- {slices[name]}" for name in slices.keys() - SLICES.keys()]
    assert not found, _list(found)
    unneeded = sorted(SLICES.keys() - slices.keys())
    assert not unneeded, f"listed without need: {unneeded}"


def test_class_names_are_unique() -> None:
    """A name that exists twice makes readers open the wrong file."""
    found = structure.classes().keys() ^ SHARED_CLASS_NAMES.keys()
    assert not found, f"defined more than once, or listed without need: {sorted(found)}"


@pytest.mark.parametrize("folders", [(), ("tests", "benchmarks", "examples")], ids=["src", "rest"])
def test_docstrings_are_plain_english(folders: Sequence[str]) -> None:
    """See STILTED: write who does what, with the standard technical word."""
    stilted = [
        (path, line, text)
        for path, line, text in structure.docstrings(*folders)
        if STILTED_PHRASE.search(text) or STILTED_BEGINNING.match(text)
    ]
    assert not stilted, _texts(stilted)


def test_messages_labels_and_help_are_plain_english() -> None:
    stilted = [one for one in structure.strings() if STILTED_PHRASE.search(one[2])]
    assert not stilted, _texts(stilted)


def test_documentation_is_plain_english() -> None:
    stilted = [one for one in structure.prose() if STILTED_PHRASE.search(one[2])]
    assert not stilted, _texts(stilted)


def _texts(stilted: Sequence[tuple[Path, int, str]]) -> str:
    return _list([f"{_name(path)}:{line} {text[:90]}" for path, line, text in stilted])


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _list(lines: list[str]) -> str:
    return "\n  ".join(["", *lines])


def _singular() -> set[str]:
    return {name.rstrip("s") for name in NAMES_THAT_SAY_NOTHING}


def _functions() -> Iterator[tuple[str, AnyFunction]]:
    for path in WRITTEN_BY_HAND:
        for node in structure.nodes_of(path):
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
    if not is_door:
        return False
    modules = {entry.stem for entry in SOURCE.iterdir()}
    return any(alias.name not in modules for alias in node.names)


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
