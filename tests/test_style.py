"""The lapses that docs/style.md lists do not come back: in pages, docstrings, messages and help texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
STYLE = ROOT / "docs" / "style.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.M)
LAPSES = {words: right for words, right in ROW.findall(STYLE.read_text()) if words not in ("instead of", "---")}
PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("README.md")}
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


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    modules = sorted((ROOT / "src").rglob("*.py"))
    pages = (line for page in PAGES for line in lines_of_page(page))
    return [*pages, *(line for file in modules for line in strings_of_module(file))]


@pytest.mark.parametrize("words", LAPSES)
def test_a_lapse_does_not_come_back(words: str, lines: list[Line]) -> None:
    lapse = pattern(words)
    found = [each for each in lines if lapse.search(each.text)]
    shown = "\n".join(f"{x.file.relative_to(ROOT)}:{x.number}: {x.text.strip()}" for x in found)
    assert not found, f"write '{LAPSES[words]}' (docs/style.md):\n{shown}"


def test_the_table_has_the_thirty_commonest() -> None:
    assert len(LAPSES) >= 30


def test_paceline_is_imported_without_an_alias() -> None:
    pages = [*PAGES, *(ROOT / "examples").glob("*.py")]
    assert [page.name for page in pages if re.search(r"paceline as pl|\bpl\.(?=[a-zA-Z])", page.read_text())] == []


@pytest.mark.parametrize("text", ["It was Added  up.", "added up"])
def test_a_lapse_is_found_whatever_its_case_and_spaces(text: str) -> None:
    assert pattern("added up, adds up").search(text)
    assert not pattern("added up, adds up").search("headed upwards")
