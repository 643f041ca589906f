"""The one line of cause, and its remedy, for small worlds by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from paceline.concurrency.watcher.graph import find_knot, find_retries
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.judge import judge
from paceline.concurrency.watcher.ranks import find_divergence
from paceline.concurrency.watcher.report import HangReport, Span, Waiting, report_divergence, report_knot
from paceline.concurrency.watcher.samples import (
    AN_END,
    Counters,
    Frame,
    Pace,
    Process,
    Snapshot,
    Subject,
    Thread,
    ThreadWait,
)
from paceline.concurrency.watcher.session import with_findings

#: What earlier versions printed, which names nothing.
NEVER = ("a lock of its own process", "with inode", "livelocked")


def process(pid: int, *threads: tuple[ThreadWait, Subject], rank: int | None = None) -> Process:
    made = tuple(Thread(subject.tid, wait) for wait, subject in threads)
    stacks = tuple((Frame("/a.py", subject.tid, "work"),) for _, subject in threads)
    tids = tuple(subject.tid for _, subject in threads)
    return Process(pid, 1, "a.py", made, stacks=stacks, tids=tids, subjects=tuple(s for _, s in threads), rank=rank)


def report(*processes: Process) -> HangReport:
    knot = find_knot(Snapshot(0.0, processes), lambda pid, tid: True)
    assert knot is not None
    found = report_knot(knot, 0.99, Span(0.0, 9.0))
    assert not any(phrase in found.text() for phrase in NEVER)
    return found


def lock(*owners: int, on: str = "a lock") -> ThreadWait:
    return ThreadWait("lock", (10,), on, owners)


def named(tid: int, what: str, name: str = "", kind: str = "lock", **more: str) -> Subject:
    return Subject(tid, name, kind, what, **more)


@pytest.mark.parametrize(
    ("kind", "what", "missing", "advice"),
    [
        ("barrier", "threading.Barrier `gate`, 3 of 4 arrived", "arrive as well", "abort()"),
        ("semaphore", "threading.Semaphore `slots`, 0 slots", "release a slot", "release a slot on every path"),
        ("task_done", "queue.Queue.join `jobs`, 1 unfinished", "call task_done()", "task_done()"),
        ("event", "threading.Event `go`, not set", "set it", "set it on every path"),
        ("future", "Future.result `answer`, pending", "set its result", "set a result or an exception"),
    ],
)
def test_what_is_missing_is_said_in_one_line_with_the_remedy_for_it(
    kind: str, what: str, missing: str, advice: str
) -> None:
    found = report(process(10, (lock(), named(10, what, kind=kind, text="gate.wait()"))))
    assert found.cause == f"the main thread waits for {what}: nothing is left that could {missing}"
    assert advice in found.remedy
    assert "at /a.py:10 in work: gate.wait()" in found.text()


def test_a_circle_is_told_in_its_order_by_the_names_of_threads() -> None:
    made = process(
        10,
        (lock(13, on=AN_END), named(10, "the end of thread c", kind="thread")),
        (lock(12), named(11, "threading.Lock `b`", "a")),
        (lock(13), named(12, "threading.Lock `c`", "b")),
        (lock(11), named(13, "threading.Lock `a`", "c")),
    )
    found = report(made)
    links = [f"thread {a} waits for threading.Lock `{b}`, held by thread {b}" for a, b in ("ab", "bc", "ca")]
    at = found.cause.index("thread ")
    said = found.cause[at:].split("; ")
    assert sorted(said) == sorted(links)
    assert all(there.rpartition(" ")[2] == after.split()[1] for there, after in pairwise(said))
    lines = [line for line in found.text().splitlines() if line.strip()[:1].isdecimal()]
    assert [line.partition("held by ")[2][:8] for line in lines[:3]] == [each[-8:] for each in said]


def test_a_handler_of_a_signal_is_the_cause_and_no_livelock() -> None:
    handler = "on_alarm, the handler of SIGALRM"
    waits = ThreadWait("lock", (10,), "a lock", (10,), timed=True, rings=True)
    made = process(10, (waits, named(10, "threading.Lock `guard`", handler=handler)))
    history = History()
    found = None
    for at in range(0, 20, 4):
        history.add(Counters(float(at), {10: {10: Pace(0, 0, at)}}, {}))
        history.observe(Snapshot(float(at), (made,)))
        found = judge(history, Snapshot(float(at), (made,)), Snapshot(at - 4.0, (made,)))
    assert find_retries(Snapshot(0.0, (made,))) is not None
    assert found is not None
    assert found.verdict == "deadlocked"
    assert found.cause.startswith(f"{handler}, waits for threading.Lock `guard`, which the main thread holds")
    assert "no lock in a handler" in found.remedy


@pytest.mark.parametrize(
    ("holder", "advice"),
    [
        ("the suspended generator rows (a.py:7)", "do not yield"),
        ("a thread of pid 9 at the moment of the fork: the copy stays locked", "start method spawn"),
        ("", "release it on every path"),
    ],
)
def test_the_remedy_is_for_the_holder(holder: str, advice: str) -> None:
    found = report(process(10, (lock(), named(10, "threading.Lock `guard`", holder=holder))))
    assert (f"held by {holder}" in found.cause) == bool(holder)
    assert advice in found.remedy


def test_an_import_that_waits_for_the_thread_which_imports_is_a_circle() -> None:
    made = process(
        10,
        (lock(11, on=AN_END), named(10, "the end of thread filler", kind="thread")),
        (lock(10), named(11, "the import of plugin", "filler", kind="import")),
    )
    found = report(made)
    assert "thread filler waits for the import of plugin, held by the main thread" in found.cause
    assert "while a module is imported" in found.remedy


def test_victims_stand_in_a_line_of_their_own() -> None:
    child = process(20, (ThreadWait("lock", (20,), "a lock"), named(20, "threading.Event `go`, not set", kind="event")))
    parent = process(10, (ThreadWait("child", (20,), "child 20"), Subject(10)))
    found = report(parent, child)
    assert found.cause.startswith("pid 20 waits for threading.Event `go`")
    assert "\n  => victims: pid 10 (a.py)\n" in found.text()
    assert "pid 10" not in found.cause


def rank(number: int, line: int, function: str | None) -> Process:
    library = (Frame("/site-packages/torch/distributed/distributed_c10d.py", 9, function),) if function else ()
    pid = 100 + number
    stack = (*library, Frame("/train.py", line, "main"))
    wait = ThreadWait("clock" if function else "lock", () if function else (pid,), "a lock")
    subject = Subject(pid, "", "event", "threading.Event `go`, not set", call=f"line {line}")
    return Process(
        pid,
        1,
        "a.py",
        (Thread(pid, wait),),
        rank=number,
        world_size=2,
        stacks=(stack,),
        tids=(pid,),
        subjects=(subject,),
    )


@pytest.mark.parametrize(
    ("ranks", "cause", "advice"),
    [
        (
            ((5, "all_reduce"), (9, "barrier")),
            "rank 1 is in barrier at train.py:9, while rank 0 is in all_reduce at train.py:5",
            "same order",
        ),
        (
            ((5, "all_reduce"), (9, None)),
            "rank 1 waits for threading.Event `go`, not set at train.py:9, while rank 0 is in all_reduce at train.py:5",
            "deadline",
        ),
        (
            ((5, "all_reduce"), (5, "all_reduce")),
            "rank 0 and rank 1 are all in all_reduce at train.py:5 and do not meet there",
            "same group",
        ),
        (
            ((5, "recv"), (5, "recv")),
            "rank 0 and rank 1 are all in recv at train.py:5: none of them is at the other end",
            "send before",
        ),
    ],
)
def test_ranks_are_said_to_be_where_they_are(
    ranks: tuple[tuple[int, str | None], ...], cause: str, advice: str
) -> None:
    snapshot = Snapshot(6.0, tuple(rank(at, *each) for at, each in enumerate(ranks)))
    history = History()
    for at in (0.0, 6.0):
        history.add(Counters(at, {each.pid: {each.pid: Pace(0, 0, 0)} for each in snapshot.processes}, {}))
        history.observe(snapshot)
    divergence = find_divergence(snapshot, history)
    assert divergence is not None
    found = report_divergence(divergence, 0.9, Span(0.0, 6.0))
    assert found.cause == cause
    assert advice in found.remedy
    assert found.ranks == 2
    assert ": line 5" in found.text()


RECEIVES = """
import torch
import torch.distributed as dist

def collect(vector):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for source in range(world):
            dist.recv(torch.empty_like(vector), src=source)
    else:
        dist.send(vector, dst=0)
"""


def test_findings_about_other_numbers_of_ranks_and_lines_of_victims_are_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(RECEIVES)

    def quoted(role: str, ranks: int) -> list[str]:
        waits = Waiting(10, "rank 0", role, "rank 1", (11,), at=Frame(str(file), 9, "collect"))
        hung = HangReport("deadlocked", 0.9, Span(0.0, 9.0), (waits,), "", ranks=ranks)
        return [each.message.partition(",")[0] for each in with_findings(hung).findings]

    (said,) = quoted("cause", 0)
    tried = int(said.split()[1])
    assert quoted("cause", tried) == [f"of {tried} ranks"]
    assert quoted("cause", tried + 1) == []
    assert quoted("victim", tried) == []


def test_a_queue_is_read_by_who_is_ahead_and_not_held() -> None:
    ahead = process(10, (ThreadWait("pipe", (10, 11), "data in pipe 4"), named(10, "Queue.get `tasks`", kind="get")))
    behind = process(11, (lock(10), named(11, "Queue.get `tasks`", kind="get")))
    text = report(ahead, behind).text()
    assert "waits for Queue.get `tasks`, which pid 10 reads from first" in text
    assert "held by" not in text
