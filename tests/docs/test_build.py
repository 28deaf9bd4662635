"""`make docs` builds all pages, and fails on errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages - listed == set()


def test_make_docs_fails_with_a_broken_link(tmp_path: Path) -> None:
    """With the flags of the Makefile: `--quiet` could hide warnings from `--strict`."""
    (command,) = re.findall(r"mkdocs build (.*)", (ROOT / "Makefile").read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("[gone](gone.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: Broken\n")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode != 0, built.stderr
    assert "gone.md" in built.stderr
