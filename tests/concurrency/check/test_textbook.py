"""The textbook programs: each broken one is found, and its repaired twin is silent.

The programs were written before the checker was run on them; the shapes marked `held out` were not looked at while the
rules were written. A program that is not found yet is listed in `MISSED`, which this test keeps exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.concurrency.check import libraries
from paceline.concurrency.check.engine import check_text
from paceline.errors import UsageError
from tests.each import each

FOLDER = Path(__file__).parent / "textbook"
_SHAPE = re.compile(r"^## (.+?)\n\n```python\n(.*?)^```\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Broken programs that are not found, and repaired twins that are not silent; a fix takes its row away.
MISSED: frozenset[str] = frozenset()


def shapes() -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Name, expected rules, the broken program, the repaired one."""
    for file in sorted(FOLDER.glob("*.md")):
        text = file.read_text()
        expected = re.search(r"^Expected: (.+)$", text, re.MULTILINE)
        assert expected is not None
        for name, broken, repaired in _SHAPE.findall(text):
            yield f"{file.stem} {name}", tuple(expected[1].split(", ")), broken, repaired


@each(("name", "expected", "broken", "repaired"), shapes())
def test_the_broken_program_is_found_and_the_repaired_one_is_silent(
    name: str, expected: tuple[str, ...], broken: str, repaired: str
) -> None:
    found = [f.rule for f in check_text("program.py", broken) if f.confidence >= 0.5]
    false = [f.rule for f in check_text("program.py", repaired) if f.confidence >= 0.5]
    assert (any(rule.startswith(expected) for rule in found) and not false) == (name not in MISSED), (found, false)


def test_a_project_adds_what_its_own_libraries_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import ourlib\n\n\nasync def main():\n    ourlib.fetch()\n"
    (tmp_path / "waits.json").write_text('{"ourlib.fetch": "waits for a reply"}')
    assert not check_text("program.py", program)
    monkeypatch.setattr(libraries, "_added", {})
    libraries.add((str(tmp_path / "waits.json"),))
    assert [f.rule for f in check_text("program.py", program)] == ["PC301"]
    with pytest.raises(UsageError, match="cannot be read"):
        libraries.add((str(tmp_path / "none.json"),))
