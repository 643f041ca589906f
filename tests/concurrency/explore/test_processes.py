"""Processes are threads with memory of their own: the benchmark's programs of processes, and what is copied."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.concurrency.explore.session import Session, Settings, Target

ROOT = Path(__file__).parents[3]
PROGRAMS = [
    each
    for each in runpy.run_path(str(ROOT / "benchmarks" / "concurrency" / "run.py"))["programs"]()
    if each.wing == "processes" and each.part != "blind"
]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


def explored(session: Session, folder: Path, source: str, schedules: int) -> Any:
    file = folder / "app.py"
    file.write_text(source)
    return session.explore(Target(str(file)), Settings(seconds=60, schedules=schedules, first=True))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_bug_is_found_and_the_repaired_twin_is_silent(session: Session, tmp_path: Path, program: Any) -> None:
    broken = explored(session, tmp_path, program.broken["main.py"], 300)
    assert broken.report["verdict"] == "found", broken.text
    repaired = explored(session, tmp_path, program.repaired["main.py"], 20)
    assert repaired.report["verdict"] in ("not found", "dismissed within bounds"), repaired.text


FORKED = """
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor

class Settings:
    level = 1

items = [1]
lock = threading.Lock()

def change(queue):
    items.append(2)
    Settings.level = 2
    with lock:
        queue.put((items, Settings.level, multiprocessing.current_process().name))

def level(_):
    return Settings.level

if __name__ == "__main__":
    for method, expected in (("fork", ([1, 0, 2], 2)), ("spawn", ([1, 2], 2))):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        items.append(0)
        child = context.Process(target=change, args=(queue,), name="child")
        child.start()
        assert queue.get() == (*expected, "child")
        child.join()
        assert child.exitcode == 0
        assert (items, Settings.level) == ([1, 0], 1)
        items.remove(0)
    Settings.level = 3
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(level, range(3))) == [3, 3, 3]
"""


def test_a_process_has_copies_of_globals_or_imports_them_anew(session: Session, tmp_path: Path) -> None:
    answer = explored(session, tmp_path, FORKED, 5)
    assert answer.report["verdict"] == "not found", answer.text


def test_a_lock_that_another_thread_holds_is_copied_by_a_fork(session: Session, tmp_path: Path) -> None:
    program = next(each for each in PROGRAMS if each.name == "process_fork_with_lock")
    answer = explored(session, tmp_path, program.broken["main.py"], 300)
    assert "waits for Lock lock, which Thread-1 (log) holds since app.py:7" in answer.text


@pytest.mark.parametrize("call", ["os.fork", "multiprocessing.Manager"])
def test_what_is_not_modelled_gives_no_verdict_in_clear_words(session: Session, tmp_path: Path, call: str) -> None:
    answer = explored(session, tmp_path, f"import multiprocessing, os\n\n{call}()\n", 5)
    assert answer.code == 2
    assert f"no verdict: {call} cannot be explored at " in answer.text
    assert "app.py:3" in answer.text
