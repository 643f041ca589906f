"""A machine joins a training that runs, takes part, and leaves: by the commands that people type."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.runtime.runs.trace import Kind, Trace
from tests.scripts import Running, typed

pytest.importorskip("spake2")

PATIENCE = 100.0  # seconds that something may take on a busy machine
#: Further plans under which a group grows.
GROWING = ["ring:canonical=4", "tree", "halving_doubling", "hierarchical:groups=3", "central", "ring:sizes=3+2+1"]
GROWING += ["ring:canonical=4,sizes=measured", "ring:codec=qsgd"]
#: A module beside it, a file that it reads anew on every machine, and steps that wait from the pass on that a file
#: says, as long as there is one.
JOB = """
import os, time
from pathlib import Path

import torch

import paceline as pl
from shapes import net

FOLDER, passes = {folder!r}, []
torch.manual_seed(1)
x = torch.randn(480, 6)
y = (x @ torch.randn(6, 1)).squeeze()


def is_held():
    try:
        return len(passes) >= int(Path(FOLDER, "hold").read_text())
    except FileNotFoundError:
        return False


def step(model, batch):
    scale = float(Path("data/scale.txt").read_text())
    passes.append(None)
    if len(passes) >= 10:  # the checks before a start make fewer
        Path(FOLDER, f"computes-{{os.getcwd().count('paceline-')}}").touch()
        Path(FOLDER, f"at-{{Path.cwd().name}}").touch()
        while is_held():
            time.sleep(0.005)
    return scale * ((model(batch[0]).squeeze(1) - batch[1]) ** 2).mean()


job = pl.Job(
    model=net, data=(x, y), step=step, optimizer=lambda p: torch.optim.SGD(p, lr=0.01), batch_size=8, epochs=1,
)
"""
SHAPES = "import torch\n\n\ndef net():\n    return torch.nn.Linear(6, 1)\n"


@pytest.fixture
def alice(tmp_path: Path) -> Path:
    """A folder with a job, and another one that is empty."""
    folder = tmp_path / "alice"
    (folder / "data").mkdir(parents=True)
    (tmp_path / "bob").mkdir()
    (folder / "job.py").write_text(JOB.format(folder=str(tmp_path)))
    (folder / "shapes.py").write_text(SHAPES)
    (folder / "data" / "scale.txt").write_text("0.5")
    hold(tmp_path, 10)
    return folder


def hold(home: Path, passes: int) -> None:
    """Let every machine go on until so many of its passes."""
    (home / "next").write_text(str(passes))
    (home / "next").rename(home / "hold")


def wait_for(condition: Callable[[], object], *running: Running) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, [each.err.read_text() for each in running]
        time.sleep(0.02)


def open_run(folder: Path, *words: object) -> tuple[Running, list[str]]:
    """Start a run that machines may join; return it, and how to join."""
    running = typed(folder, "train", "job.py", "--open", "--address", "127.0.0.1", "--quiet", *words)
    found: list[tuple[str, str]] = []

    def shown() -> bool:
        if running.err.exists():
            found[:] = re.findall(r"or: paceline join (\S+) (\S+)", running.err.read_text())
        return bool(found) or not running.process.is_alive()

    try:
        wait_for(shown, running)
        assert found, running.err.read_text()
    except BaseException:
        running.stop()
        raise
    return running, list(found[0])


def trace_of(folder: Path) -> np.ndarray:
    (run,) = (folder / "runs").iterdir()
    return Trace.open(run / "trace.arrow").rows


def test_a_machine_joins_while_the_run_goes_on_and_takes_part(alice: Path) -> None:
    first, where = open_run(alice, "--plan", "downpour")
    second = typed(alice.parent / "bob", "join", *where, "--yes")
    try:
        wait_for(lambda: (alice.parent / "computes-1").exists(), first, second)
        (alice.parent / "hold").unlink()
        joined, trained = second.end(PATIENCE), first.end(PATIENCE)
    finally:
        first.stop()
        second.stop()
    assert trained.code == joined.code == 0, (trained.err, joined.err)
    assert re.search(r"trains job by downpour:workers=8: \d\.\d MB, \d+ files", joined.err), joined.err
    rows = trace_of(alice)
    computed = rows[(rows["kind"] == Kind.COMPUTE)]
    assert set(computed["worker"]) == {0, 1}
    pushed = rows[rows["kind"] == Kind.APPLY]
    assert sorted(pushed["update"]) == list(range(60)), "every batch is in the model once"
    assert not list((alice.parent / "bob").glob("*.txt"))


def test_a_machine_that_leaves_costs_no_update(alice: Path) -> None:
    first, where = open_run(alice, "--plan", "downpour")
    second = typed(alice.parent / "bob", "join", *where, "--yes")
    try:
        wait_for(lambda: (alice.parent / "computes-1").exists(), first, second)
        assert second.process.pid
        os.kill(second.process.pid, signal.SIGINT)
        left = second.end(PATIENCE)
        (alice.parent / "hold").unlink()
        trained = first.end(PATIENCE)
    finally:
        first.stop()
        second.stop()
    assert trained.code == 0, trained.err
    assert left.code == 130, left.err
    assert "the run goes on without this rank" in left.err
    rows = trace_of(alice)
    assert sorted(rows[rows["kind"] == Kind.APPLY]["update"]) == list(range(60))


def processes_of(folder: Path) -> list[int]:
    """Return the processes of the first machine."""
    (run,) = (folder / "runs").iterdir()
    return [
        each["process"]["pid"] for each in json.loads((run / "live.json").read_text())["processes"] if not each["rank"]
    ]


@pytest.fixture
def scratch() -> Iterator[None]:
    """What a killed machine leaves behind is removed."""
    before = set(Path(tempfile.gettempdir()).glob("paceline-*"))
    yield
    for folder in set(Path(tempfile.gettempdir()).glob("paceline-*")) - before:
        shutil.rmtree(folder, ignore_errors=True)


def door_of(running: Running) -> list[str]:
    """Return how to join a run that this machine leads by now."""
    found: list[tuple[str, str]] = []

    def shown() -> bool:
        found[:] = re.findall(r"or: paceline join (\S+) (\S+)", running.err.read_text())
        return bool(found) or not running.process.is_alive()

    wait_for(shown, running)
    assert found, running.err.read_text()
    return list(found[-1])


@pytest.mark.usefixtures("scratch")
def test_a_machine_that_has_joined_leads_and_lets_others_in_when_the_first_one_is_killed(alice: Path) -> None:
    home = alice.parent
    (home / "carol").mkdir()
    first, where = open_run(alice, "--plan", "downpour")
    running = [first]
    try:
        wait_for(lambda: (home / "computes-0").exists(), first)
        running.append(bob := typed(home / "bob", "join", *where, "--yes", "--quiet"))
        wait_for(lambda: len(list(home.glob("at-*"))) == 2, *running)
        for pid in processes_of(alice):
            os.kill(pid, signal.SIGKILL)
        where = door_of(bob)
        running.append(carol := typed(home / "carol", "join", *where, "--yes", "--quiet"))
        wait_for(lambda: len(list(home.glob("at-*"))) == 3, *running)
        (home / "hold").unlink()
        joined, led = carol.end(PATIENCE), bob.end(PATIENCE)
    finally:
        for each in running:
            each.stop()
    assert led.code == joined.code == 0, (led.err, joined.err)
    assert "the head is lost: rank 1 leads from now on" in led.err
    rows = trace_of(home / "bob")
    assert set(rows[rows["kind"] == Kind.COMPUTE]["worker"]) == {0, 1, 2}, "the newcomer got a rank that none had"
    assert sorted(rows[rows["kind"] == Kind.APPLY]["update"]) == list(range(60)), "every batch is in the model once"
    (run,) = (home / "bob" / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["summary"]["workers"] == 3


@pytest.mark.soak
def test_a_head_that_wakes_comes_back_to_the_run_that_another_one_leads(alice: Path) -> None:
    home = alice.parent
    (home / "carol").mkdir()
    first, where = open_run(alice, "--plan", "downpour")
    running, stopped = [first], list[int]()
    try:
        wait_for(lambda: (home / "computes-0").exists(), first)
        running.append(bob := typed(home / "bob", "join", *where, "--yes", "--quiet"))
        wait_for(lambda: "the next machine" in first.err.read_text(), *running)
        code = re.findall(r"the next machine: paceline join (\S+)", first.err.read_text())[-1]
        running.append(carol := typed(home / "carol", "join", where[0], code, "--yes", "--quiet"))
        wait_for(lambda: len(list(home.glob("at-*"))) == 3, *running)
        stopped = processes_of(alice)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        door_of(bob)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: "comes back" in first.err.read_text(), *running)
        wait_for(lambda: len(list(home.glob("at-alice"))) == 1, *running)
        (home / "hold").unlink()
        ended = [each.end(PATIENCE) for each in (carol, bob, first)]
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for each in running:
            each.stop()
    assert [each.code for each in ended] == [0, 0, 0], [each.err for each in ended]
    rows = trace_of(home / "bob")
    assert sorted(rows[rows["kind"] == Kind.APPLY]["update"]) == list(range(60)), "every batch is in the model once"


def wait_for_group(folder: Path, ranks: list[int], *running: Running) -> None:
    """Wait until the head has formed a group of these ranks."""

    def formed() -> bool:
        events = [
            json.loads(line) for path in folder.glob("runs/*/events.jsonl") for line in path.read_text().splitlines()
        ]
        return ranks in [each["members"] for each in events if each["kind"] == "group"]

    wait_for(formed, *running)


def next_code(running: Running) -> str:
    """Return the code for the next machine."""
    wait_for(lambda: "the next machine" in running.err.read_text(), running)
    codes: list[str] = re.findall(r"the next machine: paceline join (\S+)", running.err.read_text())
    return codes[-1]


@pytest.mark.parametrize("plan", ["ring", *(pytest.param(each, marks=pytest.mark.soak) for each in GROWING)])
def test_a_group_grows_while_it_trains(alice: Path, monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    """From one machine to two, and to three. A replay makes the same bits, of a canonical sum without the groups."""
    home = alice.parent
    (home / "carol").mkdir()
    first, where = open_run(alice, "--plan", plan, "--workers", "3")
    running = [first]
    try:
        wait_for(lambda: (home / "computes-0").exists(), first)
        running.append(typed(home / "bob", "join", *where, "--yes"))
        wait_for_group(alice, [0, 1], *running)
        hold(home, 30)
        running.append(typed(home / "carol", "join", where[0], next_code(first), "--yes"))
        wait_for_group(alice, [0, 1, 2], *running)
        (home / "hold").unlink()
        ended = [each.end(PATIENCE) for each in running]
    finally:
        for each in running:
            each.stop()
    assert [each.code for each in ended] == [0, 0, 0], [each.err for each in ended]
    rows = trace_of(alice)
    computed = rows[rows["kind"] == Kind.COMPUTE]
    begins = [int(computed["update"][computed["worker"] == rank].min()) for rank in range(3)]
    assert 0 == begins[0] < begins[1] < begins[2], begins
    assert sorted(rows["update"][(rows["kind"] == Kind.APPLY) & (rows["worker"] == 2)]) == list(range(begins[2], 60))
    (run,) = (alice / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["summary"]["workers"] == 3
    monkeypatch.chdir(alice)
    assert paceline.replay(run).matches


@pytest.mark.soak
@pytest.mark.usefixtures("scratch")
def test_a_machine_that_dies_while_it_joins_a_group_leaves_it_as_it_was(
    alice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed when the others know that it comes, and before any of them has given it the state."""
    home = alice.parent
    (home / "carol").mkdir()
    first, where = open_run(alice, "--plan", "ring", "--workers", "3")
    running = [first]
    try:
        wait_for(lambda: (home / "computes-0").exists(), first)
        running.append(bob := typed(home / "bob", "join", *where, "--yes"))
        wait_for_group(alice, [0, 1], *running)
        assert bob.process.pid
        os.kill(bob.process.pid, signal.SIGKILL)
        hold(home, 30)
        wait_for(lambda: "rank 0 goes on" in first.err.read_text(), *running)
        running.append(typed(home / "carol", "join", where[0], next_code(first), "--yes"))
        wait_for_group(alice, [0, 2], *running)
        (home / "hold").unlink()
        ended = [each.end(PATIENCE) for each in running]
    finally:
        for each in running:
            each.stop()
    assert [each.code for each in ended] == [0, -signal.SIGKILL, 0], [each.err for each in ended]
    rows = trace_of(alice)
    assert set(rows["worker"][rows["kind"] == Kind.COMPUTE]) == {0, 2}
    (run,) = (alice / "runs").iterdir()
    monkeypatch.chdir(alice)
    assert paceline.replay(run).matches


@pytest.mark.soak
def test_under_a_synchronous_plan_the_run_waits_for_all(alice: Path) -> None:
    (alice.parent / "hold").unlink()
    first, where = open_run(alice, "--plan", "local_sgd", "--workers", "2")
    second = typed(alice.parent / "bob", "join", *where, "--yes")
    try:
        joined, trained = second.end(PATIENCE), first.end(PATIENCE)
    finally:
        first.stop()
        second.stop()
    assert trained.code == joined.code == 0, (trained.err, joined.err)
    (run,) = (alice / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["summary"]["workers"] == 2
