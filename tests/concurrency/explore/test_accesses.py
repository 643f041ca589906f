"""Accesses in whatever form: none is left out, or the program is not called dismissed; updates that tasks lose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.concurrency.explore.session import Session, Settings, Target

PROGRAM = """
import copy, dataclasses, functools, heapq, operator, sys, threading
from operator import attrgetter as reader, setitem as put

guard, total = threading.Lock(), 0

class Counter:
    def __init__(self):
        self.n, self.items = 0, {{"n": 0}}

class Frozen:
    def __init__(self):
        object.__setattr__(self, "n", 0)

    def __setattr__(self, name, value):
        raise AttributeError(name)

class Counts(dict):
    def get(self, key):
        return super().get(key)

    def set(self, key, value):
        super().__setitem__(key, value)

@dataclasses.dataclass
class State:
    n: int = 0

c, frozen, counts, state = Counter(), Frozen(), Counts(n=0), State()
fields = c.__dict__

def add():
    global state
    if "repaired" in sys.argv:
        with guard:
            step()
    else:
        step()

def step():
    global state
    {step}

threads = [threading.Thread(target=add) for _ in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
result = {result}
assert result == 2, result
"""
STEPS = {
    "setattr": 'old = getattr(c, "n"); setattr(c, "n", old + 1)',
    "an alias": 'get, store = getattr, setattr; old = get(c, "n"); store(c, "n", old + 1)',
    "partial": 'old = functools.partial(getattr, c)("n"); functools.partial(setattr, c, "n")(old + 1)',
    "attrgetter": 'old = reader("n")(c); c.n = old + 1',
    "vars": 'old = vars(c)["n"]; c.n = old + 1',
    "__dict__": 'old = c.n; c.__dict__["n"] = old + 1',
    "a name of __dict__": 'old = fields["n"]; fields.update(n=old + 1)',
    "object.__setattr__": 'old = frozen.n; object.__setattr__(frozen, "n", old + 1)',
    "operator.setitem": 'old = operator.itemgetter("n")(c.items); put(c.items, "n", old + 1)',
    "dict.__setitem__": 'old = dict.get(c.items, "n"); dict.__setitem__(c.items, "n", old + 1)',
    "bound methods": 'get, store = c.items.get, c.items.__setitem__; old = get("n"); store("n", old + 1)',
    "super": 'old = counts.get("n"); counts.set("n", old + 1)',
    "replace": "new = dataclasses.replace(state, n=state.n + 1); state = new",
    "copy": "new = copy.copy(state); new.n += 1; state = new",
    "globals": 'old = total; globals()["total"] = old + 1',
    "hasattr": 'new = 2 if hasattr(c, "m") else 1; setattr(c, "m", new)',
}
RESULTS = {"object": "frozen.n", "super": 'counts["n"]', "replace": "state.n", "copy": "state.n", "globals": "total"}
RESULTS |= dict.fromkeys(("operator", "dict", "bound"), 'c.items["n"]') | {"hasattr": "c.m"}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


@pytest.mark.parametrize("name", STEPS)
def test_an_update_is_lost_by_whatever_function_makes_it(session: Session, tmp_path: Path, name: str) -> None:
    file, result = tmp_path / "app.py", RESULTS.get(name.partition(" ")[0].partition(".")[0], "c.n")
    file.write_text(PROGRAM.format(step=STEPS[name], result=result))
    settings = Settings(seconds=60, schedules=60, first=True)
    answer = session.explore(Target(str(file)), settings)
    assert answer.report["verdict"] == "found", answer.text
    twin = session.explore(Target(str(file), arguments=("repaired",)), settings)
    assert twin.report["verdict"] == "dismissed within bounds", twin.text


def test_code_that_is_not_rewritten_is_named_and_nothing_is_dismissed(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(PROGRAM.format(step='exec("c.n = c.n + 1")', result="c.n"))
    report = session.explore(Target(str(file)), Settings(seconds=60, schedules=60)).report
    assert report["verdict"] == "not found"
    assert "`exec`" in report["outside"][0]


TASKS = """
import asyncio, sys

class Account:
    def __init__(self):
        self.n, self.items, self.lock = 0, {{}}, asyncio.Lock()

    async def add(self):
        if "repaired" in sys.argv:
            async with self.lock:
                await self.step()
        else:
            await self.step()

    async def get(self):
        await asyncio.sleep(0.1)
        return 1

    async def step(self):
        {step}

async def main():
    account = Account()
    await asyncio.gather(account.add(), account.add())
    print(account.n, account.items)

asyncio.run(main())
"""
UPDATES = {
    "a variable": "old = self.n; await self.get(); new = old + 1; self.n = new",
    "an item": 'old = self.items.get("k", 0); await self.get(); self.items["k"] = old + 1',
    "one statement": "self.n += await self.get()",
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_that_a_task_loses_is_found_without_an_assertion(session: Session, tmp_path: Path, name: str) -> None:
    file = tmp_path / "app.py"
    file.write_text(TASKS.format(step=UPDATES[name]))
    answer = session.explore(Target(str(file)), Settings(seconds=60, schedules=60))
    assert answer.report["finding"]["kind"] == "lost update", answer.text
    twin = session.explore(Target(str(file), arguments=("repaired",)), Settings(seconds=60, schedules=60))
    assert twin.report["verdict"] == "dismissed within bounds", twin.text


def test_what_was_read_again_before_it_is_written_is_not_lost(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(TASKS.format(step="old = self.n; await self.get(); self.n = old + 1 if self.n == old else self.n"))
    assert not session.explore(Target(str(file)), Settings(seconds=60, schedules=60)).report["findings"]


def test_a_yield_may_take_longer_than_the_work_of_another_task(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        """
import asyncio, sys

async def main():
    done = []
    async def work():
        await asyncio.sleep(0)
        done.append(1)
    task = asyncio.create_task(work())
    if "repaired" in sys.argv:
        await task
    for _ in range(3):
        await asyncio.sleep(0)
    assert done

asyncio.run(main())
"""
    )
    found = session.explore(Target(str(file)), Settings(seconds=60, schedules=100, first=True)).report
    assert (found["verdict"], found["without_a_switch"]) == ("found", False)
    twin = session.explore(Target(str(file), arguments=("repaired",)), Settings(seconds=60, schedules=60)).report
    assert not twin["findings"]


CLAIM = """
import pathlib, sys, tempfile, threading

def claim(marker):
    try:
        if "repaired" not in sys.argv and marker.exists():
            return
        marker.open("x" if "repaired" in sys.argv else "w").close()
        done.append(1)
    except FileExistsError:
        pass

done = []
with tempfile.TemporaryDirectory() as folder:
    threads = [threading.Thread(target=claim, args=(pathlib.Path(folder, "claim"),)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
assert len(done) == 1
"""


def test_a_file_that_two_threads_look_for_before_they_make_it(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(CLAIM)
    found = session.explore(Target(str(file)), Settings(seconds=60, schedules=60, first=True)).report
    assert (found["verdict"], found["finding"]["kind"]) == ("found", "exception")
    twin = session.explore(Target(str(file), arguments=("repaired",)), Settings(seconds=60, schedules=60)).report
    assert not twin["findings"]


def test_a_global_that_only_another_module_assigns(session: Session, tmp_path: Path) -> None:
    (tmp_path / "state.py").write_text("count = 0\ndef get():\n    return count\n")
    file = tmp_path / "app.py"
    text = PROGRAM.format(step="old = state.get(); state.count = old + 1", result="state.count")
    file.write_text("import state\n" + text.replace("c, frozen, counts, state =", "c, frozen, counts, _ ="))
    settings = Settings(seconds=60, schedules=60, first=True)
    assert session.explore(Target(str(file)), settings).report["verdict"] == "found"
    twin = session.explore(Target(str(file), arguments=("repaired",)), settings)
    assert twin.report["verdict"] == "dismissed within bounds", twin.text
