"""The lapses that docs/internals/style.md lists do not come back: in pages, docstrings, messages and help texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
STYLE = ROOT / "docs" / "internals" / "style.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.M)
LAPSES = {words: right for words, right in ROW.findall(STYLE.read_text()) if words not in ("instead of", "---")}
PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("README.md")}
    - {STYLE, ROOT / "CHANGELOG.md"}
)
CODE = re.compile(r"`[^`]*`")


class Line(NamedTuple):
    file: Path
    number: int
    text: str


def pattern(words: str) -> re.Pattern[str]:
    """Return what finds any of the words, as words, whatever white space lies between them."""
    alternatives = (re.escape(each.strip()).replace(r"\ ", r"\s+") for each in words.split(", "))
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.I)


def lines_of_page(page: Path) -> Iterator[Line]:
    for number, text in enumerate(page.read_text().split("\n"), 1):
        yield Line(page, number, CODE.sub("", text))


def strings_of_module(file: Path) -> Iterator[Line]:
    """Yield the lines of a module's strings: docstrings, messages, help texts."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, text in enumerate(node.value.split("\n")):
                yield Line(file, node.lineno + offset, CODE.sub("", text))


def all_lines(any_lapse: re.Pattern[str]) -> Iterator[Line]:
    for page in PAGES:
        yield from lines_of_page(page)
    for file in sorted((ROOT / "src").rglob("*.py")):
        if any_lapse.search(file.read_text()):  # few modules: only these are parsed
            yield from strings_of_module(file)


def test_no_lapse_comes_back() -> None:
    """All in one test, since the lines are read once."""
    any_lapse = pattern(", ".join(LAPSES))
    found = [line for line in all_lines(any_lapse) if any_lapse.search(line.text)]
    shown = [
        f"{line.file.relative_to(ROOT)}:{line.number}: {line.text.strip()}\n    write '{right}' ({STYLE.name})"
        for words, right in LAPSES.items()
        for line in found
        if pattern(words).search(line.text)
    ]
    assert not found, "\n".join(shown)


def test_paceline_is_imported_without_an_alias() -> None:
    pages = [*PAGES, *(ROOT / "examples").glob("*.py")]
    assert [page.name for page in pages if re.search(r"paceline as pl|\bpl\.(?=[a-zA-Z])", page.read_text())] == []


@pytest.mark.parametrize("text", ["It was Added  up.", "added up"])
def test_a_lapse_is_found_whatever_its_case_and_spaces(text: str) -> None:
    assert pattern("added up, adds up").search(text)
    assert not pattern("added up, adds up").search("headed upwards")
