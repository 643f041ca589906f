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


@pytest.mark.parametrize("call", ["os.fork", "multiprocessing.RawArray"])
def test_what_is_not_modelled_gives_no_verdict_in_clear_words(session: Session, tmp_path: Path, call: str) -> None:
    answer = explored(session, tmp_path, f"import multiprocessing, os\n\n{call}()\n", 5)
    assert answer.code == 2
    assert f"no verdict: {call} cannot be explored at " in answer.text
    assert "app.py:3" in answer.text


MANAGED = """
import multiprocessing

def add(totals, order, names, counts, lock):
    with lock:
        totals["x"] = totals.get("x", 0) + 1
        order.append(1)
        names.count += 1
        counts[0] += 1
    totals["list"].append(3)

if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        totals, order, names = manager.dict(list=[]), manager.list(), manager.Namespace(count=0)
        counts, lock = multiprocessing.Array("i", 2), manager.Lock()
        children = [multiprocessing.Process(target=add, args=(totals, order, names, counts, lock)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert (dict(totals), list(order)) == ({"x": 2, "list": []}, [1, 1])
        assert (names.count, counts[:]) == (2, [2, 0])
"""


@pytest.mark.parametrize("lock", ["with lock:", "if True:"])
def test_what_a_manager_makes_is_common_and_its_values_are_copies(session: Session, tmp_path: Path, lock: str) -> None:
    answer = explored(session, tmp_path, MANAGED.replace("with lock:", lock), 100)
    expected = ("found",) if lock == "if True:" else ("not found", "dismissed within bounds")
    assert answer.report["verdict"] in expected, answer.text


PIPED = """
import subprocess
import sys

WRITER = "import sys; sys.stderr.write('x' * 200_000); print('done')"
child = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
output, _ = child.communicate() if "repaired" in sys.argv else (child.stdout.read(), child.stderr.read())
assert output == b"done\\n"
"""


def test_a_program_that_waits_for_a_reader_of_its_pipe_is_a_deadlock(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(PIPED)
    broken = session.explore(Target(str(file)), Settings(schedules=2))
    assert "app.py:7: deadlock: the stderr of " in broken.text
    repaired = session.explore(Target(str(file), arguments=("repaired",)), Settings(schedules=2))
    assert repaired.report["verdict"] != "found", repaired.text


ENDING_POOL = """
from multiprocessing import Pool

with Pool(1) as pool:
    pool.map(abs, [-1, 2], chunksize=1)
"""


def test_a_pool_that_ends_takes_back_items_alone(session: Session, tmp_path: Path) -> None:
    """Between the look whether there is an item and the reading of it, a worker must not take it."""
    (tmp_path / "app.py").write_text(ENDING_POOL)
    settings = Settings(seconds=60, schedules=30, strategy="pos", first=True)
    answer = session.explore(Target(str(tmp_path / "app.py")), settings)
    assert answer.report["verdict"] == "not found", answer.text


COUNTER = """
import fcntl
import multiprocessing

def draw(path, results):
    with open(path, "r+") as file:
        LOCK
        number = int(file.read())
        file.seek(0)
        file.write(str(number + 1))
    results.put(number)

if __name__ == "__main__":
    results = multiprocessing.SimpleQueue()
    open(FILE, "w").write("1")
    workers = [multiprocessing.Process(target=draw, args=(FILE, results)) for _ in range(2)]
    [each.start() for each in workers]
    assert results.get() != results.get()
"""


def test_what_a_file_contains_is_read_and_written_in_any_order_unless_it_is_locked(
    session: Session, tmp_path: Path
) -> None:
    source = COUNTER.replace("FILE", repr(str(tmp_path / "counter")))
    broken = explored(session, tmp_path, source.replace("LOCK", "pass"), 50)
    assert broken.report["verdict"] == "found", broken.text
    repaired = explored(session, tmp_path, source.replace("LOCK", "fcntl.flock(file, fcntl.LOCK_EX)"), 15)
    assert repaired.report["verdict"] == "not found", repaired.text
    assert not repaired.report["outside"]
