"""Every failure of the page of failures, with real processes: what is said, the exit code, and that nothing is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.errors.cases import CASES, Case
from tests.errors.happening import GroupRefused, happen

ALL = [case for cases in CASES.values() for case in cases]
PAGE = Path(__file__).parents[2] / "docs" / "reproductions" / "failures.md"


def even(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.what)
def test_it_is_told(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    try:
        code, said = happen(case, tmp_path)
    except GroupRefused as refused:
        pytest.skip(f"no control group for memory may be made here: {refused}")
    assert code == case.exit, said
    for words in case.says:
        assert re.search(words, even(said)), said
    assert "src/paceline" not in said, "lines of ours say nothing to who uses them"


def test_the_page_shows_what_is_printed() -> None:
    sections = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S))
    assert len(sections) >= 40
    assert list(sections) == [case.what[0].upper() + case.what[1:] for case in ALL]
    for case in ALL:
        for words in case.says:
            assert re.search(words, even(sections[case.what[0].upper() + case.what[1:]])), f"{case.what}: {words}"
