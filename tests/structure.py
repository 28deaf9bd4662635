"""Imports, classes and texts of the source, for the tidy tests."""

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.planted.operations import tree_of

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stoker"
Edges = dict[str, set[str]]
DOCUMENTED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, the module first. Each file is read and parsed once.

    The garbage collector does not visit the million of nodes. It would take three times as long as
    the parser.
    """
    gc.disable()
    nodes = tuple(ast.walk(tree_of(path)))
    gc.freeze()
    gc.enable()
    return nodes


@cache
def modules() -> dict[str, Path]:
    """Return name -> path of all modules but migrations."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "migrations" not in path.parts:
            parts = ["stoker", *path.relative_to(SOURCE).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Edges, list[str]]:
    """Return module -> imported modules, and the lines of imports inside functions."""
    edges: Edges = defaultdict(set)
    inside: list[str] = []
    for name, path in modules().items():
        unseen = set(_only_for_types(path))
        in_functions = set(_in_functions(path))
        for node in nodes_of(path):
            if not isinstance(node, ast.Import | ast.ImportFrom) or node in unseen:
                continue
            targets = _targets(name, path, node) - {name}
            edges[name] |= targets
            if targets and node in in_functions:
                inside.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    return edges, inside


def circles() -> list[str]:
    """Return the groups of modules that import each other, directly or through others."""
    edges, _ = imports()
    reached = {name: _reached(name, edges) for name in edges}
    knots = {
        frozenset(other for other in found if name in reached.get(other, ())) | {name}
        for name, found in reached.items()
        if name in found
    }
    return sorted(" <-> ".join(sorted(knot)) for knot in knots)


def slices() -> dict[str, str]:
    """Return the modules that only one module of the same folder imports -> that module."""
    importers: Edges = defaultdict(set)
    for name, targets in imports()[0].items():
        for target in targets:
            importers[target].add(name)
    found = {}
    for name, path in modules().items():
        only = next(iter(importers[name])) if len(importers[name]) == 1 else ""
        if path.name != "__init__.py" and _folder(only) == _folder(name):
            found[str(path.relative_to(SOURCE))] = only
    return found


def classes() -> dict[str, list[str]]:
    """Return class name -> the files that define it, for names with several."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules().values():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and node.name not in ("Meta", "Command"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return {name: files for name, files in found.items() if len(files) > 1}


def docstrings(*folders: str) -> Iterator[tuple[Path, int, str]]:
    """Yield path, line and text of all docstrings, those of attributes included: in these folders
    of the repository, or in the package."""
    elsewhere = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in elsewhere or modules().values():
        for node in nodes_of(path):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                yield path, getattr(node, "lineno", 1), " ".join(text.split())
            if isinstance(node, ast.ClassDef | ast.Module):
                yield from ((path, line, text) for line, text in _of_attributes(node))


def prose() -> Iterator[tuple[Path, int, str]]:
    """Yield path, line and text of the lines of documentation, without code blocks."""
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
        blocks = re.split(r"^```", path.read_text(), flags=re.MULTILINE)
        line = 1
        for number, block in enumerate(blocks):
            for text in block.split("\n"):
                if number % 2 == 0 and text.strip():
                    yield path, line, text
                line += 1
            line -= 1


def _of_attributes(node: ast.ClassDef | ast.Module) -> Iterator[tuple[int, str]]:
    for before, after in zip(node.body, node.body[1:], strict=False):
        match before, after:
            case (ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text)))):
                yield after.lineno, " ".join(text.split())


def _in_functions(path: Path) -> Iterator[ast.AST]:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ast.walk(node)


def _only_for_types(path: Path) -> Iterator[ast.AST]:
    for node in nodes_of(path):
        if isinstance(node, ast.If):
            asked = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node.test)}
            if "TYPE_CHECKING" in asked:
                yield from ast.walk(node)


def _targets(name: str, path: Path, node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & set(modules())
    base = node.module or ""
    if node.level:
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        package = package[: len(package) - node.level + 1]
        base = ".".join([*package, *([node.module] if node.module else [])])
    full = {f"{base}.{alias.name}" for alias in node.names}
    return {one if one in modules() else base for one in full} & set(modules())


def _reached(name: str, edges: Edges) -> set[str]:
    found: set[str] = set()
    ahead = set(edges.get(name, ()))
    while ahead:
        found |= ahead
        ahead = {target for one in ahead for target in edges.get(one, ())} - found
    return found


def _folder(name: str) -> str:
    return name.rpartition(".")[0]


def strings() -> Iterator[tuple[Path, int, str]]:
    """Yield path, line and text of messages, labels and help: string constants with a blank."""
    for path in modules().values():
        documented = {
            id(node.value)
            for node in nodes_of(path)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in nodes_of(path):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value
                and id(node) not in documented
            ):
                yield path, node.lineno, " ".join(node.value.split())
    for path in sorted(SOURCE.rglob("*.html")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield path, number, line
