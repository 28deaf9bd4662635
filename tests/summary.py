"""What became of the parts of `make test`, and the summary that it closes with."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Result:
    """What became of a part. Failures and skips are names with what is to be said of them."""

    part: str
    passed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    unsure: list[tuple[str, str]] = field(default_factory=list)
    """Failures of tests that passed each time they were tried again by themselves."""
    seconds: float = 0
    note: str = ""

    def in_words(self) -> str:
        """Put the numbers in words."""
        failed, skipped = len(self.failures), len(self.skips)
        return f"{self.passed} passed, {failed} failed, {skipped} skipped"


def read_report(report: Path, result: Result) -> None:
    """Add to the result what pytest wrote down of each test."""
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own pytest wrote it
        name = test_of(case)
        skip = next(case.iter("skipped"), None)
        trouble = next(case.iter("failure"), next(case.iter("error"), None))
        if trouble is not None:
            result.failures.append((name, first_line_of(trouble)))
        elif skip is not None:
            result.skips.append((name, first_line_of(skip) or "without a reason"))
        else:
            result.passed += 1


def test_of(case: ET.Element) -> str:
    """Give the name by which pytest finds the test again: path::class::function."""
    words = (case.get("classname") or "").split(".")
    classes: list[str] = []
    while words and not (ROOT / "/".join(words)).with_suffix(".py").is_file():
        classes.insert(0, words.pop())
    return "::".join([f"{'/'.join(words)}.py", *classes, case.get("name") or ""])


def first_line_of(element: ET.Element) -> str:
    """Give the beginning of what pytest said of a failure or a skip."""
    return (element.get("message") or "").strip().partition("\n")[0][:200]


def show_summary(results: list[Result], skips: list[tuple[str, str]], seconds: float) -> None:
    """Show the parts, what failed, what was left out and why, and the sums as the last line."""
    print(f"\n{'part':<22}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
    for result in results:
        numbers = (result.passed, len(result.failures), len(result.skips))
        columns = "".join(f"{number:>8}" for number in numbers)
        print(f"{result.part:<22}{columns}{result.seconds:>9.1f}  {result.note}".rstrip())
    print(f"{'together':<46}{seconds:>9.1f}")
    failures = [(r.part, *failure) for r in results for failure in r.failures]
    unsure = [(r.part, *test) for r in results for test in r.unsure]
    left_out = [("all", *skip) for skip in skips]
    left_out += [(r.part, *skip) for r in results for skip in r.skips]
    for title, lines in (
        ("Failed:", failures),
        ("Unsure (failed, then passed each time; to be mended):", unsure),
        ("Skipped:", left_out),
    ):
        if lines:
            print(f"\n{title}")
        for part, name, sentence in lines:
            print(f"  {f'{part}: ' if part != name else ''}{name}: {sentence}")
    passed = sum(result.passed for result in results)
    doubt = f"{len(unsure)} unsure, " if unsure else ""
    print(f"\n{passed} passed, {len(failures)} failed, {doubt}{len(left_out)} skipped", flush=True)
