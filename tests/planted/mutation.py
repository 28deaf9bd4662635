"""Mutation testing: python -m tests.planted.mutation TARGET [--most N] [--seed N] [--again FILE]

Makes small changes (operators, constants, conditions, statements), one at a time, in every function
of a target's modules, and runs the tests that call this function. A mutant that no test notices has
survived, and is printed with its line. The tests are collected once; each mutant gets a fork of
that process, in which the code of its function is replaced.
"""

import argparse
import ast
import copy
import gc
import os
import pickle
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stoker"
TARGETS = {
    "guards": (
        ("guards",),
        (
            "tests/unit/guards",
            "tests/guards/test_unique.py",
            "tests/guards/test_limits.py",
            "tests/conformance/test_guards.py",
            "tests/conformance/test_rates.py",
            "tests/conformance/test_guard_turns.py",
            "tests/conformance/test_guard_writes.py",
            "tests/conformance/test_guard_locked_keys.py",
            "tests/conformance/test_guard_model.py",
            "tests/conformance/test_guard_sweep.py",
            "tests/integration/test_dead_letters.py",
            "tests/integration/test_undo_requeue.py",
        ),
    ),
    "retries": (
        ("jobs/retries.py",),
        ("tests/unit/lifecycle/test_retries.py", "tests/lifecycle/test_failures.py"),
    ),
    "cron": (("values/cron.py",), ("tests/unit/schedules",)),
    "package": (
        ("jobs/envelope.py", "jobs/package.py"),
        (
            "tests/unit/test_package.py",
            "tests/unit/test_packages_alike.py",
            "tests/unit/test_serializers.py",
        ),
    ),
}
"""Name -> modules, and the tests that must notice."""
LONGEST_SECONDS = 30.0
"""A mutant that takes this much longer than its tests counts as noticed: it hangs."""
KILLED, SURVIVED, NOT_RUN = 1, 0, 2

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}

Place = tuple[str, str, int]
"""File, qualified name and first line of a function."""


@dataclass(frozen=True)
class Mutant:
    """One change in one function."""

    place: Place
    line: int
    what: str
    code: CodeType
    """The code of the function with the change."""
    unchanged: CodeType
    """The code of the function without it."""

    def __str__(self) -> str:
        path = Path(self.place[0]).relative_to(SOURCE)
        return f"{path}:{self.line} {self.place[1]}: {self.what}"


# -- the mutants ----------------------------------------------------------------------------------


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Make every mutant of a module that compiles."""
    tree = ast.parse(path.read_text())
    codes = dict(_codes(compile(tree, str(path), "exec")))
    for index, node in enumerate(ast.walk(tree)):
        for number, what in enumerate(_changes_of(node)):
            mutated = copy.deepcopy(tree)
            other = next(one for at, one in enumerate(ast.walk(mutated)) if at == index)
            list(_changes_of(other, number))
            line = getattr(node, "lineno", 0)
            try:
                changed = dict(
                    _codes(compile(ast.fix_missing_locations(mutated), str(path), "exec"))
                )
            except SyntaxError:
                continue
            for place, code in changed.items():
                if place in codes and code != codes[place] and "<" not in place[1]:
                    yield Mutant(place, line or place[2], what, code, codes[place])
                    break


def _codes(code: CodeType) -> Iterator[tuple[Place, CodeType]]:
    """Return outer functions only. Otherwise changes of inner ones would count twice."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_class = not constant.co_flags & 0x2  # CO_NEWLOCALS, which functions have
            is_class = is_class or "__module__" in constant.co_names[:2]
            if is_class:
                yield from _codes(constant)
            else:
                place = (constant.co_filename, constant.co_qualname, constant.co_firstlineno)
                yield place, constant


def _changes_of(node: ast.AST, wanted: int | None = None) -> Iterator[str]:
    """Describe the changes of a node, and make the wanted one in place."""
    found: list[tuple[str, str, Any]] = []
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            if other := SWAPPED.get(type(operator)):
                operators = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                found.append((f"{_name(operator)} -> {other.__name__}", "ops", operators))
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        if other := SWAPPED.get(type(node.op)):
            found.append((f"{_name(node.op)} -> {other.__name__}", "op", other()))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        number = cast("float", node.value)
        found.append((f"{number} -> {number + 1}", "value", number + 1))
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        found.append((f"{node.value} -> {not node.value}", "value", not node.value))
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        found.append(("condition negated", "test", ast.UnaryOp(ast.Not(), node.test)))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_nothing(node.value):
        found.append(("returns None", "value", ast.Constant(None)))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        found.append((f"dropped: {ast.unparse(node)[:60]}", "value", ast.Constant(None)))
    for at, (what, name, value) in enumerate(found):
        if at == wanted:
            setattr(node, name, value)
        yield what


def _name(node: ast.AST) -> str:
    return type(node).__name__


def _is_nothing(node: ast.AST) -> bool:
    """Return whether None would mean the same to an ``if``."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


# -- their tests ----------------------------------------------------------------------------------


class Runner:
    """Runs mutants instead of the tests that pytest has collected."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self.mutants = mutants
        self.survivors: list[Mutant] = []
        self.number = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which test calls which functions, then run the mutants one after another."""
        callers = self._callers(session)
        controls: dict[Place, int] = {}
        # A function's tests have to pass without a change, or every mutant would seem noticed.
        for mutant in self.mutants:
            tests = callers.get(mutant.place[:2], [])
            self.number += 1
            if not tests:
                self._note(mutant, "no test calls it")
                continue
            seconds = sum(took for _, took in tests)
            items = [session.items[at] for at, _ in sorted(tests, key=lambda one: one[1])]
            limit = seconds + LONGEST_SECONDS
            if mutant.place not in controls:
                run = partial(_run, session, items, mutant.place, mutant.unchanged)
                controls[mutant.place] = _in_fork(run, limit)
            code = controls[mutant.place]
            if code == SURVIVED:
                run = partial(_run, session, items, mutant.place, mutant.code)
                code = _in_fork(run, limit)
            else:  # its tests fail in a fork anyway
                code = NOT_RUN
                print(f"not run: {mutant.place[1]}", flush=True)
            if code == SURVIVED:
                self._note(mutant, f"{len(items)} tests pass")
            elif code == NOT_RUN:
                self.number -= 1
        return True

    def _note(self, mutant: Mutant, why: str) -> None:
        self.survivors.append(mutant)
        print(f"{mutant} ({why})", flush=True)

    def _callers(self, session: pytest.Session) -> dict[tuple[str, str], list[tuple[int, float]]]:
        """Return function -> the tests that call it, with their seconds."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            wanted = {mutant.place[0] for mutant in self.mutants}
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(dict(_observed(session, wanted)), pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            found: dict[tuple[str, str], list[tuple[int, float]]] = pickle.load(pipe)
        os.waitpid(pid, 0)
        return found


def _observed(
    session: pytest.Session, files: set[str]
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    callers: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for at in range(len(session.items)):
        seen: set[tuple[str, str]] = set()

        def note(frame: Any, event: str, _: Any, seen: set[tuple[str, str]] = seen) -> None:
            if event == "call" and frame.f_code.co_filename in files:
                seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

        failed, began = session.testsfailed, time.monotonic()
        sys.setprofile(note)
        _run_one(session, session.items, at)
        sys.setprofile(None)
        took = time.monotonic() - began
        if session.testsfailed == failed:
            for place in seen:
                callers[place].append((at, took))
    return callers


def _run(session: pytest.Session, items: list[pytest.Item], place: Place, code: CodeType) -> int:
    functions = [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType
        and (one.__code__.co_filename, one.__code__.co_qualname) == place[:2]
        and one.__code__.co_firstlineno == place[2]
    ]
    try:
        for function in functions:
            function.__code__ = code
    except ValueError:  # it uses other variables of its surroundings
        return NOT_RUN
    if not functions:
        return NOT_RUN
    for at in range(len(items)):
        _run_one(session, items, at)
        if session.testsfailed:
            return KILLED
    return SURVIVED


def _run_one(session: pytest.Session, items: list[pytest.Item], at: int) -> None:
    following = items[at + 1] if at + 1 < len(items) else None
    session.config.hook.pytest_runtest_protocol(item=items[at], nextitem=following)


def _in_fork(call: Any, seconds: float) -> int:
    pid = os.fork()
    if pid == 0:
        code = NOT_RUN
        try:
            os.setsid()
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            code = call()
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return KILLED if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return KILLED


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--most", type=int, default=None, help="a sample of so many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="what the path of a module ends with")
    parser.add_argument(
        "--again", type=Path, help="output of a run: only the mutants that survived"
    )
    chosen = parser.parse_args()
    modules, tests = TARGETS[chosen.target]
    paths = [
        path
        for name in modules
        for path in (sorted((SOURCE / name).glob("*.py")) or [SOURCE / name])
        if str(path).endswith(chosen.only)
    ]
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    if chosen.most is not None and chosen.most < len(mutants):
        mutants = sorted(
            random.Random(chosen.seed).sample(mutants, chosen.most), key=lambda one: one.place
        )
    if chosen.again:
        survived = chosen.again.read_text()
        mutants = [mutant for mutant in mutants if f"{mutant} (" in survived]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings.sqlite")
    os.environ["STOKER_TEST_WAIT_SECONDS"] = "20"
    runner = Runner(mutants)
    began = time.monotonic()
    quietly = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", "-s"]
    pytest.main([*quietly, "-m", "not slow and not redis", *tests], plugins=[runner])
    killed = runner.number - len(runner.survivors)
    share = killed / max(1, runner.number)
    print(
        f"{chosen.target}: {killed} of {runner.number} mutants noticed ({share:.0%})"
        f" in {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
