"""The checker on small programs: the findings that must be reported are marked in them, and no other may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from paceline.concurrency.check.engine import check_text
from tests.each import each

CASES = Path(__file__).parent / "cases"
_CASE = re.compile(r"^## (.+?)\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FOUND = re.compile(r"# found: (PC\d+)")


def cases() -> Iterator[tuple[str, str]]:
    for file in sorted(CASES.glob("*.md")):
        for name, code in _CASE.findall(file.read_text()):
            yield f"{file.stem}: {name}", code


@each(("name", "code"), list(cases()))
def test_finds_what_is_marked(name: str, code: str) -> None:
    wanted = {(n, m[1]) for n, line in enumerate(code.splitlines(), 1) if (m := _FOUND.search(line))}
    found = {(f.line, f.rule) for f in check_text("case.py", code)}
    assert found == wanted
