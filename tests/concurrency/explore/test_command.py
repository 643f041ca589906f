"""The command, its page, replays, and the oracles that are asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.concurrency.explore import formats
from paceline.concurrency.explore.report import read_token
from paceline.concurrency.explore.session import Session, Settings, Target
from paceline.errors import UsageError
from paceline.interfaces.cli.explore import drills_of, parse_target

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "explorer.md"
PROGRAMS = Path(__file__).parent / "programs" / "fitted"
RACE = """
import threading

class Box:
    value = 0

def put(value):
    Box.value = value

threads = [threading.Thread(target=put, args=(each,)) for each in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(Box.value)
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


def written(folder: Path, source: str) -> Target:
    file = folder / "app.py"
    file.write_text(source)
    return Target(str(file))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="names two locks of one line by its columns")
def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    program, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.S).groups()  # type: ignore[union-attr]
    written(tmp_path, program)
    command = [sys.executable, "-m", "paceline", "explore", "app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    printed = re.sub(r"schedule \d+ \(\w+\), [\d.]+ s", "schedule N (STRATEGY), S s", done.stdout)
    printed = re.sub(r"after \d+ of \d+ schedules in [\d.]+ s", "after N of M schedules in S s", printed)
    assert re.sub(r"ex1-\S+", "TOKEN", printed) == shown
    assert done.returncode == 1


@pytest.mark.parametrize("program", ["lost_update", "unread_future", "timeout_too_short"])
def test_a_replay_gives_the_finding_again(session: Session, program: str) -> None:
    target = Target(str(PROGRAMS / f"{program}.py"))
    report = session.explore(target, Settings(seconds=60, first=True)).report
    assert len(read_token(report["replay"])[0]) == report["switches"]
    for _ in range(3):
        again = session.explore(target, Settings(replay=report["replay"])).report
        assert again["finding"] == report["finding"]
        assert again["schedules"] == 1


def test_a_race_that_does_no_harm_is_reported_on_request(session: Session, tmp_path: Path) -> None:
    target = written(tmp_path, RACE.replace("print(Box.value)", "print('done')"))
    assert session.explore(target).report["verdict"] == "dismissed within bounds"
    finding = session.explore(target, Settings(races=True, first=True)).report["finding"]
    assert finding["kind"] == "data race"
    assert "Box.value" in finding["message"]


def test_results_that_differ_are_reported_on_request(session: Session, tmp_path: Path) -> None:
    finding = session.explore(written(tmp_path, RACE), Settings(same=True, first=True)).report["finding"]
    assert finding["kind"] == "results differ"
    assert "'1'" in finding["message"]


def test_a_lock_of_a_library_is_named_and_the_search_goes_on(session: Session, tmp_path: Path) -> None:
    source = """
import _thread
import threading

real = _thread.allocate_lock()
real.acquire()

def wait():
    real.acquire()

thread = threading.Thread(target=wait, name="waiter")
thread.start()
done = threading.Event()
threading.Thread(target=done.set).start()
done.wait()
real.release()
thread.join()
"""
    report = session.explore(written(tmp_path, source), Settings(schedules=1)).report
    assert report["finding"] is None
    assert report["outside"] == ["waiter at app.py:9"]


TWO = """
import threading

class Box:
    n = 0
    items = {"a": 1}

def add():
    Box.n += 1

def drop():
    Box.items.pop("a", None)

def use():
    if "a" in Box.items:
        return Box.items["a"]

threads = [threading.Thread(target=each) for each in (add, add, use, drop)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert Box.n == 2
"""


def test_the_search_goes_on_and_lists_distinct_findings(session: Session, tmp_path: Path) -> None:
    answer = session.explore(written(tmp_path, TWO), Settings(seconds=20, schedules=150))
    assert sorted(each["finding"]["line"] for each in answer.report["findings"]) == [16, 23]
    assert answer.text.count("replay: paceline explore") == 2
    assert "2 findings in" in answer.text
    first = session.explore(written(tmp_path, TWO), Settings(seconds=20, first=True)).report
    assert len(first["findings"]) == 1


UPDATE = """
import threading

condition = threading.Condition()
done = 0

def work():
    global done
    done += 1
    with condition:
        condition.notify()

for _ in range(3):
    threading.Thread(target=work).start()
with condition:
    while done < 3:
        condition.wait()
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_update_is_found_early_and_is_no_lost_wake_up(session: Session, tmp_path: Path, seed: int) -> None:
    report = session.explore(written(tmp_path, UPDATE), Settings(seconds=20, seed=seed, first=True)).report
    assert report["schedules"] < 60
    assert report["finding"]["kind"] == "deadlock"
    assert any(each["what"] == "is interrupted before it writes done" for each in report["finding"]["schedule"])


THREADS = """
import threading
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(VALUE)
"""
UPDATES = {
    "global": ("x = 0\ndef work():\n    global x\n    x += 1\n", "x"),
    "attribute": ("class A:\n    n = 0\na = A()\ndef work():\n    a.n += 1\n", "a.n"),
    "item": ("d = {'a': 0}\ndef work():\n    d['a'] = d.get('a', 0) + 1\n", "d"),
    "array": ("import numpy\nd = numpy.zeros(1)\ndef work():\n    d[0] += 1\n", "d"),
    "loop": ("x = 0\ndef work():\n    global x\n    for _ in range(8_000):\n        x += 1\n", "x"),
}


@pytest.mark.parametrize("name", UPDATES)
def test_a_lost_update_is_found_without_an_assertion(session: Session, tmp_path: Path, name: str) -> None:
    source, value = UPDATES[name]
    report = session.explore(written(tmp_path, source + THREADS.replace("VALUE", value)), Settings(first=True)).report
    assert report["finding"]["kind"] == "lost update"
    assert report["schedules"] < 20
    again = session.explore(Target(str(tmp_path / "app.py")), Settings(replay=report["replay"])).report
    assert again["finding"] == report["finding"]


def test_results_that_differ_because_of_a_race_are_reported(session: Session, tmp_path: Path) -> None:
    source = "d = {'a': 0}\ndef work():\n    if d['a']:\n        d['a'] = 2\n    else:\n        d['a'] = 1\n"
    target = written(tmp_path, source + THREADS.replace("VALUE", "d['a']"))
    finding = session.explore(target, Settings(first=True)).report["finding"]
    assert finding["kind"] == "results differ"
    assert "nothing orders the accesses" in finding["message"]
    harmless = source.replace("= 2", "= 1") + THREADS.replace("VALUE", "d['a']")
    assert session.explore(written(tmp_path, harmless)).report["verdict"] == "dismissed within bounds"


def test_timers_that_are_due_together_come_in_any_order(session: Session, tmp_path: Path) -> None:
    source = UPDATES["attribute"][0] + THREADS.replace("Thread(target=work)", "Timer(0.01, work)")
    report = session.explore(written(tmp_path, source.replace("VALUE", "a.n")), Settings(first=True)).report
    assert report["finding"]["kind"] == "lost update"
    assert report["schedules"] < 20


CHANCES = {
    "deadlock": """
import random, threading
lock = threading.Lock()
def work():
    lock.acquire()
    if random.random() < 0.001:
        return
    lock.release()
thread = threading.Thread(target=work)
thread.start()
thread.join()
with lock:
    pass
""",
    "a collection": """
import threading
lock = threading.Lock()
class Handle:
    def __del__(self):
        with lock:
            pass
def work():
    handle = Handle()
    handle.me = handle
    del handle
    with lock:
        with threading.Lock():
            pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
}


@pytest.mark.parametrize("name", CHANCES)
def test_rare_numbers_and_collections_come_about_and_are_replayed(session: Session, tmp_path: Path, name: str) -> None:
    target = written(tmp_path, CHANCES[name])
    report = session.explore(target, Settings(first=True, seconds=20)).report
    assert report["finding"]["kind"] == "deadlock"
    assert not report["without_a_switch"]
    assert session.explore(target, Settings(replay=report["replay"])).report["finding"] == report["finding"]


LOOPS = {
    "never awaited": "async def note():\n    pass\nasync def main():\n    note()\n",
    "blocked loop": "import time\nasync def main():\n    time.sleep(0.5)\n",
    "not thread-safe": (
        "import asyncio, threading\nasync def main():\n    loop = asyncio.get_running_loop()\n"
        "    threading.Thread(target=lambda: loop.call_soon(print)).start()\n    await asyncio.sleep(1)\n"
    ),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_what_asyncio_would_warn_of_is_a_finding(session: Session, tmp_path: Path, kind: str) -> None:
    report = session.explore(Target(written(tmp_path, LOOPS[kind]).file, function="main"), Settings(first=True)).report
    assert report["finding"]["kind"] == kind
    assert report["finding"]["line"] in (3, 4)


def test_a_reader_that_holds_the_last_end_to_write_waits_for_itself(session: Session, tmp_path: Path) -> None:
    source = """
import multiprocessing

def read(source, sink):
    CLOSE
    try:
        while True:
            source.recv()
    except EOFError:
        pass

if __name__ == "__main__":
    source, sink = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=read, args=(source, sink))
    process.start()
    sink.close()
    process.join(5)
"""
    finding = session.explore(written(tmp_path, source.replace("CLOSE", "pass")), Settings(first=True)).report[
        "finding"
    ]
    assert finding["message"] == "a thread waits for what it holds itself"
    repaired = session.explore(
        written(tmp_path, source.replace("CLOSE", "sink.close()")), Settings(schedules=20)
    ).report
    assert repaired["finding"] is None


BRIDGE = """
import asyncio
import threading

async def main():
    future = asyncio.get_running_loop().create_future()
    threading.Thread(target=ANSWER).start()
    assert await future == 42

asyncio.run(main())
"""


def test_only_what_wakes_a_waiting_loop_lets_it_continue(session: Session, tmp_path: Path) -> None:
    silent = BRIDGE.replace("ANSWER", "lambda: future.set_result(42)")
    finding = session.explore(written(tmp_path, silent), Settings(first=True)).report["finding"]
    story = [("not thread-safe", 7), ("MainThread", 10), ("task Task-1", 8)]
    assert [(each["who"], each["line"]) for each in finding["story"]] == story
    waking = BRIDGE.replace("ANSWER", "lambda: future.get_loop().call_soon_threadsafe(future.set_result, 42)")
    assert session.explore(written(tmp_path, waking)).report["verdict"] == "dismissed within bounds"


def test_a_finding_is_sarif_and_one_page_with_a_lane_for_each_thread(session: Session, tmp_path: Path) -> None:
    report = session.explore(written(tmp_path, TWO), Settings(seconds=20, first=True)).report
    result = json.loads(formats.sarif(report))["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == report["finding"]["line"]
    assert len(result["codeFlows"][0]["threadFlows"]) > 1
    page = formats.html(report)
    assert page.count("<b style='grid-column:") >= len(result["codeFlows"][0]["threadFlows"])
    assert "class='switch'" in page
    assert report["replay"] in page


def test_a_function_of_a_module_is_explored(session: Session, tmp_path: Path) -> None:
    target = written(tmp_path, "import asyncio\n\nasync def main():\n    await asyncio.sleep(3600)\n    assert False\n")
    report = session.explore(Target(target.file, function="main")).report
    assert report["finding"]["line"] == 5
    assert report["without_a_switch"]


def test_wrong_use_is_refused() -> None:
    for text in ("app", "app.py:not a name", "app.py:"):
        with pytest.raises(UsageError, match=re.escape(repr(text))):
            parse_target(text)
    with pytest.raises(UsageError, match="--ranks 2"):
        drills_of(["nan"], 0)
    with pytest.raises(UsageError, match="not a drill"):
        drills_of(["fire"], 2)
    with pytest.raises(UsageError, match="not a token"):
        read_token("ex1-nonsense")


TESTS = """
import threading
import pytest

class Box:
    n = 0

def add():
    Box.n += 1

def added(number):
    threads = [threading.Thread(target=add) for _ in range(number)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    return Box.n

@pytest.fixture
def number():
    return 2

class TestBox:
    @pytest.mark.explore(seconds=120)
    @pytest.mark.parametrize("start", [1])
    def test_fixtures(self, number, start):
        Box.n = start
        assert added(number) == start + 2
"""


def test_a_marked_test_is_explored_as_pytest_runs_it(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(TESTS)
    plugin = ["-p", "paceline.concurrency.explore.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "test_app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed" in done.stdout, done.stdout
    assert "is interrupted before it writes Box.n" in done.stdout
    assert "test_app.py::TestBox::test_fixtures[1]" in done.stdout


def test_a_file_of_tests_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(TESTS)
    with pytest.raises(UsageError, match=r"name one, as .*test_app\.py::test_sale"):
        parse_target(str(tmp_path / "test_app.py"))
    assert parse_target("test_app.py::TestBox::test_fixtures[1]") == Target(
        "test_app.py", test="TestBox::test_fixtures[1]"
    )


WAITING = """
import asyncio

async def main():
    await asyncio.Queue().get()

asyncio.run(main())
"""


def test_a_deadlock_says_in_which_call_a_task_waits(session: Session, tmp_path: Path) -> None:
    answer = session.explore(written(tmp_path, WAITING))
    assert "waits in Queue.get" in answer.text
    future = session.explore(written(tmp_path, "from concurrent.futures import Future\n\nFuture().result()\n"))
    assert "waits for a notification of Condition Future._condition" in future.text


def test_what_was_left_out_is_said(session: Session, tmp_path: Path) -> None:
    assert "there was no order to choose" in session.explore(written(tmp_path, "print(1)\n")).text
    timer = "import threading\n\nthreading.Timer(0.1, print).start()\nthreading.Thread(target=print).start()\n"
    assert "try --late 0.1" in session.explore(written(tmp_path, timer), Settings(schedules=5)).text


DRILLED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "/dev/null")
dist.barrier()
"""


def test_drills_say_what_one_fault_does(tmp_path: Path) -> None:
    target = written(tmp_path, DRILLED)
    with Session() as session:
        answer = session.explore(target, Settings(ranks=2, drills=drills_of(["all"], 2)))
    assert [each["outcome"] for each in answer.report["drills"]] == [
        "ended with a clear error",
        "hung",
        "silently diverged",
        "ended with a clear error",
        "ended with a clear error",
    ], answer.text
    assert answer.code == 1


def test_json_is_one_object(tmp_path: Path) -> None:
    written(tmp_path, "print('hello')\n")
    command = [sys.executable, "-m", "paceline", "explore", "app.py", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["verdict"] == "dismissed within bounds"
    assert done.returncode == 0


JOINED = """
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Join([model]):
    for _ in range(2 + dist.get_rank()):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
dist.barrier()
"""


def test_uneven_inputs_with_join_are_no_finding(tmp_path: Path) -> None:
    with Session() as session:
        answer = session.explore(written(tmp_path, JOINED), Settings(ranks=2, schedules=2))
    assert answer.code == 0, answer.text


def test_modelled_collectives_compute_what_real_ones_do() -> None:
    with Session() as session:
        answer = session.explore(Target(str(Path(__file__).parent / "collectives.py")), Settings(ranks=3, schedules=1))
    assert answer.report["verdict"] == "not found", answer.text


@pytest.mark.parametrize(
    ("source", "function", "code", "line"),
    [
        ("def f(:\n", "", 2, "no verdict: MainThread: SyntaxError"),
        ("def f():\n    pass\n", "g", 2, "no verdict: MainThread: AttributeError"),
        ("import os\nos.environ['WORLD_SIZE']\n", "", 1, "give --ranks 2"),
    ],
)
def test_what_cannot_be_explored_is_no_finding_and_a_script_of_ranks_is_known(
    session: Session, tmp_path: Path, source: str, function: str, code: int, line: str
) -> None:
    target = Target(written(tmp_path, source).file, function=function)
    answer = session.explore(target, Settings(seconds=5.0))
    assert answer.code == code
    assert line in answer.text
    assert "replay:" not in answer.text


def test_a_handler_of_a_signal_runs_between_two_steps_of_its_thread(session: Session, tmp_path: Path) -> None:
    source = """
import os, signal, threading

class State:
    wanted = 0

def ask(*_):
    State.wanted += 1

def work():
    with lock:
        State.wanted

signal.signal(signal.SIGUSR1, ask)
lock = threading.Lock()
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    with lock:
        os.kill(os.getpid(), signal.SIGUSR1)
thread.join()
"""
    report = session.explore(written(tmp_path, source), Settings(schedules=20)).report
    assert report["finding"] is None, report["finding"]


SLEEPER = """
import threading, time

def poll():
    while not stop.wait(0.01):
        answers.append(1)

answers, stop = [], threading.Event()
thread = threading.Thread(target=poll)
thread.start()
time.sleep(0.2)
stop.set()
assert answers != []
thread.join()
"""


@pytest.mark.parametrize(("late", "verdict"), [(0.03, 0), (1.0, 1)])
def test_a_sleep_outlasts_other_threads_unless_the_machine_is_slow(
    session: Session, tmp_path: Path, late: float, verdict: int
) -> None:
    answer = session.explore(written(tmp_path, SLEEPER), Settings(schedules=100, late=late, first=True))
    assert answer.code == verdict, answer.text


SPINNING = """
import threading, time

def spin():
    while not done:
        pass

done = False
thread = threading.Thread(target=spin)
thread.start()
time.sleep(5)
done = True
thread.join()
"""


def test_a_thread_that_runs_on_and_on_leaves_its_turn_to_those_that_sleep(session: Session, tmp_path: Path) -> None:
    answer = session.explore(written(tmp_path, SPINNING), Settings(schedules=20))
    assert answer.code == 0, answer.text


ORDERED = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
names = {"correct", "seen", "loss"}
rank = int(os.environ["RANK"])
for name in ORDER:
    total = torch.tensor(float(len(name)))
    dist.all_reduce(total)
    assert total == 2 * len(name), (rank, name)
"""


@pytest.mark.parametrize(("order", "code"), [("names", 1), ("list(names)", 1), ("sorted(names)", 0)])
def test_a_set_of_strings_has_another_order_on_each_rank(tmp_path: Path, order: str, code: int) -> None:
    with Session() as session:
        source = ORDERED.replace("ORDER", order)
        answer = session.explore(written(tmp_path, source), Settings(ranks=2, schedules=1))
    assert answer.code == code, answer.text
