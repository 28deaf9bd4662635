"""Read pages: blocks of code, and comments meant for the tests."""

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "reference" not in path.parts)
EXAMPLES = [path for path in PAGES if path != TUTORIAL and "decisions" not in path.parts]


@dataclass(frozen=True)
class Step:
    """A block of code, or a comment meant for the tests."""

    kind: str
    """The language of a block; "run" or "check" for a comment."""
    text: str
    title: str
    line: int
    is_run: bool = True


STEP = re.compile(
    r"^ *<!-- *(?P<comment>not run|run the jobs|check)(?:: *(?P<expression>.*?))? *-->$"
    r"|^(?P<indent> *)```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


def steps_of(page: Path) -> list[Step]:
    """Return the steps of a page, in order."""
    text = page.read_text()
    steps: list[Step] = []
    is_run = True
    for match in STEP.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        comment = match["comment"]
        if comment == "not run":
            assert match["expression"], f"{page.name}:{line}: say why it is not run"
            is_run = False
        elif comment:
            kind = "run" if comment == "run the jobs" else "check"
            steps.append(Step(kind, match["expression"] or "", "", line))
        else:
            title = re.search(r'title="([^"]*)"', match["info"])
            body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
            steps.append(Step(match["language"], body, title[1] if title else "", line, is_run))
            is_run = True
    return steps


def matches(wanted: str, got: str) -> bool:
    """Compare as doctest does: ``...`` stands for anything."""
    return doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command with its expected output."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        yield command, wanted
