"""Operations that plant a mistake in the syntax tree of one function.

A mistake names a function, as `schedules.fire:Round.fire`, and a node in it by a pattern: Python
code in which `_` stands for any expression, and `...` for any further arguments of a call or any
statements of a block. A pattern that fits no node, or several, raises `Misfit`. A function that has
moved to another module is found there as long as no other has its name.
"""

import ast
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ANY = "_"
NOT_COMPARED = {"ctx", "kind", "type_comment", "type_params"}
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

Slots = Iterator[tuple[ast.AST, str, int | None, ast.AST]]


class Misfit(Exception):
    """The code has changed, so that a mistake cannot be planted any more."""


@dataclass(frozen=True)
class Operation:
    """What happens to the node that the pattern matches."""

    pattern: str
    change: Callable[[ast.AST], list[ast.AST]]
    """Returns one expression, or any number of statements."""
    of_statement: bool = True
    """False: it is for an expression, which may also be a statement."""
    is_lifted: bool = False
    """The statement moves behind its block."""
    which: int | None = None
    """The index of the node if the pattern matches several. None: it matches one."""


def replace(pattern: str, code: str) -> Operation:
    """Replace an expression or a statement."""
    body = ast.parse(code).body
    old = ast.parse(pattern).body[0]
    if isinstance(old, ast.Expr) and len(body) == 1 and isinstance(body[0], ast.Expr):
        new = body[0].value
        return Operation(pattern, lambda _: [new], of_statement=False)
    return Operation(pattern, lambda _: list(body))


def negate(pattern: str) -> Operation:
    """Negate a condition. The pattern may be the whole `if` or `while`, to match its body, too."""
    is_value = isinstance(ast.parse(pattern).body[0], ast.Expr)

    def change(node: ast.AST) -> list[ast.AST]:
        if isinstance(node, ast.expr):
            return [ast.UnaryOp(ast.Not(), node)]
        assert isinstance(node, ast.If | ast.While)
        fields = dict(ast.iter_fields(node))
        return [type(node)(**{**fields, "test": ast.UnaryOp(ast.Not(), node.test)})]

    return Operation(pattern, change, of_statement=not is_value)


def drop(pattern: str) -> Operation:
    """Drop a statement."""
    return Operation(pattern, lambda _: [ast.Pass()])


def drop_keyword(pattern: str, name: str) -> Operation:
    """Drop a keyword argument of a call."""

    def change(node: ast.AST) -> list[ast.AST]:
        assert isinstance(node, ast.Call), f"{pattern} is no call"
        kept = [one for one in node.keywords if one.arg != name]
        if len(kept) == len(node.keywords):
            raise Misfit(f"{pattern} has no argument {name}")
        return [ast.Call(node.func, node.args, kept)]

    return Operation(pattern, change, of_statement=False)


def drop_operand(pattern: str, operand: str) -> Operation:
    """Drop an operand of `and`, `or`, `&` or `|`, or an element of a list, tuple or set."""
    unwanted = ast.parse(operand, mode="eval").body

    def change(node: ast.AST) -> list[ast.AST]:
        if isinstance(node, ast.BinOp):
            for side, other in ((node.left, node.right), (node.right, node.left)):
                if _fits(unwanted, side):
                    return [other]
        name = "values" if isinstance(node, ast.BoolOp) else "elts"
        parts: list[ast.expr] = getattr(node, name, [])
        kept = [one for one in parts if not _fits(unwanted, one)]
        if len(kept) != len(parts) - 1:
            raise Misfit(f"{pattern} does not have {operand}")
        if isinstance(node, ast.BoolOp) and len(kept) == 1:
            return [kept[0]]
        return [type(node)(**{**dict(ast.iter_fields(node)), name: kept})]

    return Operation(pattern, change, of_statement=False)


def lift(pattern: str) -> Operation:
    """Move a statement behind its block."""
    return Operation(pattern, lambda node: [node], is_lifted=True)


def precede(pattern: str, code: str) -> Operation:
    """Run other code before a statement."""
    return Operation(pattern, lambda node: [*ast.parse(code).body, node])


def repeat(pattern: str) -> Operation:
    """Run a statement twice."""
    return Operation(pattern, lambda node: [node, node])


def last(operation: Operation) -> Operation:
    """Choose the last of the nodes that the pattern matches."""
    return dataclasses.replace(operation, which=-1)


# -- where ----------------------------------------------------------------------------------------


def plant(source: Path, place: str, operation: Operation) -> tuple[Path, str]:
    """Return the module that a mistake changes, and its code with the mistake.

    Raises:
        Misfit: there is no such function, or the pattern does not fit exactly one node of it.
    """
    path, tree, function = _find(source, place)
    _apply(function, operation, place)
    return path, ast.unparse(ast.fix_missing_locations(tree))


def check(source: Path, place: str, operation: Operation) -> None:
    """Raise Misfit if the mistake cannot be planted. Faster than planting it."""
    _, _, function = _find(source, place, tree_of)
    *_, node = _slot(function, operation, place)
    operation.change(node)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a module. It is parsed once, so callers must not change it."""
    return ast.parse(path.read_text())


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


Parse = Callable[[Path], ast.Module]


def _find(source: Path, place: str, parse: Parse = _parsed) -> tuple[Path, ast.Module, ast.AST]:
    module, _, name = place.partition(":")
    stem = source / module.replace(".", "/")
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.exists() and (found := _named(path, name, parse)):
            return found
    moved = [found for path in sorted(source.rglob("*.py")) if (found := _named(path, name, parse))]
    if len(moved) != 1:
        raise Misfit(f"{name} is not in {module}, and {len(moved)} other modules have it")
    return moved[0]


def _named(path: Path, name: str, parse: Parse) -> tuple[Path, ast.Module, ast.AST] | None:
    if name.rpartition(".")[2] not in path.read_text():
        return None
    tree = parse(path)
    node: ast.AST = tree
    for word in name.split("."):
        named = [one for one in ast.iter_child_nodes(node) if _name_of(one) == word]
        if not named:
            return None
        node = named[-1]  # overloads stand before it
    return path, tree, node


def _name_of(node: ast.AST) -> str | None:
    if isinstance(node, DEFINITIONS):
        return node.name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) else None
    return None


def _slot(
    function: ast.AST, operation: Operation, place: str
) -> tuple[ast.AST, str, int | None, ast.AST]:
    pattern: ast.AST = ast.parse(operation.pattern).body[0]
    if not operation.of_statement:
        assert isinstance(pattern, ast.Expr), f"{operation.pattern} is no expression"
        pattern = pattern.value
    hits = [slot for slot in _slots(function) if _fits(pattern, slot[3])]
    if not hits or (len(hits) > 1 and operation.which is None):
        raise Misfit(f"{place} has {len(hits)} x {operation.pattern}")
    hits.sort(key=lambda slot: (getattr(slot[3], "lineno", 0), getattr(slot[3], "col_offset", 0)))
    return hits[operation.which or 0]


def _apply(function: ast.AST, operation: Operation, place: str) -> None:
    owner, field, index, node = _slot(function, operation, place)
    new = operation.change(node)
    if index is None:
        (only,) = new
        setattr(owner, field, only)
        return
    block = getattr(owner, field)
    if operation.is_lifted:
        outer, outer_field, at, _ = next(slot for slot in _slots(function) if slot[3] is owner)
        assert at is not None
        getattr(outer, outer_field).insert(at + 1, node)
        new = [] if len(block) > 1 else [ast.Pass()]
    block[index : index + 1] = new


def _slots(function: ast.AST) -> Slots:
    for owner in ast.walk(function):
        for field, value in ast.iter_fields(owner):
            if isinstance(value, ast.AST):
                yield owner, field, None, value
            elif isinstance(value, list):
                for index, one in enumerate(value):
                    if isinstance(one, ast.AST):
                        yield owner, field, index, one


# -- what -----------------------------------------------------------------------------------------


def _fits(pattern: object, node: object) -> bool:
    if isinstance(pattern, ast.Name) and pattern.id == ANY:
        return isinstance(node, ast.expr)
    if isinstance(pattern, list) and isinstance(node, list):
        return _all_fit(pattern, node)
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and pattern == node
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call) and pattern.args and _is_rest(pattern.args[-1]):
        assert isinstance(node, ast.Call)
        given = len(pattern.args) - 1
        return (
            _fits(pattern.func, node.func)
            and _all_fit(pattern.args[:given], node.args[:given])
            and all(any(_fits(one, other) for other in node.keywords) for one in pattern.keywords)
        )
    return all(
        _fits(value, getattr(node, field, None))
        for field, value in ast.iter_fields(pattern)
        if field not in NOT_COMPARED
    )


def _all_fit(patterns: Sequence[ast.AST], nodes: Sequence[ast.AST]) -> bool:
    if patterns and isinstance(patterns[-1], ast.Expr) and _is_rest(patterns[-1].value):
        patterns, nodes = patterns[:-1], nodes[: len(patterns) - 1]
    return len(patterns) == len(nodes) and all(map(_fits, patterns, nodes))


def _is_rest(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
