"""The explorer finds the bug of every small program, and nothing in its repaired twin.

The programs in `unseen` were written before the explorer ran, and were not looked at while it was tuned.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.concurrency.explore.session import Session, Settings, Target

PROGRAMS = Path(__file__).parent / "programs"
FILES = sorted(PROGRAMS.glob("*/*.py"))


def settings(file: Path, schedules: int) -> Settings:
    return Settings(seconds=120, schedules=schedules, ranks=2 if file.stem.startswith("ranks") else 0, first=True)


@pytest.fixture(scope="module")
def sessions() -> Iterator[dict[bool, Session]]:
    """One process for programs of ranks, since one that holds PyTorch forks slowly, and one for all others."""
    with Session() as threads, Session() as ranks:
        yield {False: threads, True: ranks}


@pytest.fixture
def session(sessions: dict[bool, Session], file: Path) -> Session:
    return sessions[file.stem.startswith("ranks")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_bug_is_found(session: Session, file: Path) -> None:
    answer = session.explore(Target(str(file)), settings(file, 400))
    assert answer.report["verdict"] == "found", answer.text


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_repaired_twin_is_silent(session: Session, file: Path) -> None:
    answer = session.explore(Target(str(file), arguments=("repaired",)), settings(file, 30))
    assert answer.report["verdict"] in ("not found", "dismissed within bounds"), answer.text
