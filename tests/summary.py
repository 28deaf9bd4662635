"""The summary at the end of `make test`: what failed, what was skipped, where the time went."""

import json
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.processor_time import PROPERTY

ROOT = Path(__file__).resolve().parents[1]
SLOWEST = 10


@dataclass
class Time:
    """Wall time and processor time, in seconds."""

    wall: float = 0
    processor: float = 0

    def add(self, wall: float, processor: float) -> None:
        """Add to both."""
        self.wall += wall
        self.processor += processor


@dataclass
class Result:
    """The result of a part. Failures and skips are pairs of a name and a sentence."""

    part: str
    passed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    time: Time = field(default_factory=Time)
    modules: dict[str, Time] = field(default_factory=lambda: defaultdict(Time))
    """The time of its tests, by module."""


def read_results(report: Path) -> list[Result]:
    """Read nox's report, and next to it what the parts themselves have written."""
    if not report.exists():  # nox was not given anything that it could run
        return []
    return [_read_part(one, report.parent) for one in json.loads(report.read_text())["sessions"]]


def _read_part(told: dict[str, str], folder: Path) -> Result:
    result = Result(told["name"])
    if told["result"] == "skipped":
        result.skips.append((result.part, told.get("reason") or "without a reason"))
        return result
    result.time.wall = float(told["duration"] or 0)
    measured = folder / f"{result.part}.json"
    if measured.exists():
        result.time.processor = json.loads(measured.read_text())["processor_seconds"]
    if (tests := folder / f"{result.part}.xml").exists():
        read_report(tests, result)
    elif told["result"] == "success":
        result.passed = 1
    if told["result"] != "success" and not result.failures:
        result.failures.append((result.part, told.get("reason") or told["result"]))
    return result


def read_report(report: Path, result: Result) -> None:
    """Add to the result what pytest wrote down of each test."""
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own pytest wrote it
        name = test_of(case)
        result.modules[name.partition("::")[0]].add(
            float(case.get("time") or 0),
            sum(float(p.get("value") or 0) for p in _properties(case, PROPERTY)),
        )
        skip = next(case.iter("skipped"), None)
        trouble = next(case.iter("failure"), next(case.iter("error"), None))
        if trouble is not None:
            result.failures.append((name, first_line_of(trouble)))
        elif skip is not None:
            result.skips.append((name, first_line_of(skip) or "without a reason"))
        else:
            result.passed += 1


def _properties(case: ET.Element, name: str) -> Iterable[ET.Element]:
    return (one for one in case.iter("property") if one.get("name") == name)


def test_of(case: ET.Element) -> str:
    """Give the name by which pytest finds the test again: path::class::function."""
    words = (case.get("classname") or "").split(".")
    classes: list[str] = []
    while words and not (ROOT / "/".join(words)).with_suffix(".py").is_file():
        classes.insert(0, words.pop())
    function = case.get("name") or ""
    if not words:  # a worker of pytest-xdist failed as a whole, and says which
        return function
    return "::".join([f"{'/'.join(words)}.py", *classes, function])


def first_line_of(element: ET.Element) -> str:
    """Give the beginning of what pytest said of a failure or a skip."""
    return (element.get("message") or "").strip().partition("\n")[0][:200]


def show_summary(results: list[Result], wall: float, processor: float) -> None:
    """Show the parts, the slowest modules, skips, failures, and the sums as the last line."""
    columns = ("passed", "failed", "skipped", "seconds", "processor")
    print(f"\n{'part':<26}{''.join(f'{column:>10}' for column in columns)}")
    for one in results:
        numbers = (one.passed, len(one.failures), len(one.skips))
        counts = "".join(f"{number:>10}" for number in numbers)
        print(f"{one.part:<26}{counts}{one.time.wall:>10.1f}{one.time.processor:>10.1f}")
    print(f"{'together':<56}{wall:>10.1f}{processor:>10.1f}")
    _show_slowest(results)
    skips = [(one.part, *skip) for one in results for skip in one.skips]
    _show_skips(skips)
    failures = [(one.part, *failure) for one in results for failure in one.failures]
    # Failures come last, so that they are still there if only the end of the output is kept.
    if failures:
        print("\nFailed:")
    for part, name, sentence in failures:
        print(f"  {f'{part}: ' if part != name else ''}{name}: {sentence}")
    passed = sum(one.passed for one in results)
    print(
        f"\n{passed} passed, {len(failures)} failed, {len(skips)} skipped in {wall:.0f} s"
        f" ({processor:.0f} s of processor time)",
        flush=True,
    )


def _show_skips(skips: list[tuple[str, str, str]]) -> None:
    """Show each reason once, with the number of tests. The reports have their names."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for part, _, sentence in skips:
        by_reason[sentence].append(part)
    if skips:
        print("\nSkipped:")
    for sentence, parts in by_reason.items():
        print(f"{len(parts):>5}  {sentence} ({', '.join(dict.fromkeys(parts))})")


def _show_slowest(results: list[Result]) -> None:
    """Show which modules took most processor time. Modules run at once, so wall times overlap."""
    modules = [(one.part, *item) for one in results for item in one.modules.items()]
    modules.sort(key=lambda module: module[2].processor, reverse=True)
    if modules:
        print(f"\nThe {SLOWEST} modules that took the most processor time:")
    for part, name, time in modules[:SLOWEST]:
        print(f"  {f'{part}: {name}':<64}{time.wall:>10.1f}{time.processor:>10.1f}")
