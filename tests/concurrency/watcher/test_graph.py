"""Who can be woken, and who is the cause: small worlds by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.concurrency.watcher.graph import find_knot, find_retries
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.ranks import RankPlace, find_divergence, place_of
from paceline.concurrency.watcher.samples import (
    AGAIN,
    ENDED,
    Counters,
    Frame,
    Pace,
    Process,
    Snapshot,
    Stack,
    Thread,
    ThreadWait,
)

CLOCK = ThreadWait("clock")
LOCK_STACK: Stack = (Frame("/home/a.py", 3, "run"),)
EVENT_STACK: Stack = (Frame("/usr/lib/python3.11/threading.py", 327, "wait"), Frame("/home/a.py", 3, "run"))


def process(pid: int, *waits: ThreadWait, **more: Any) -> Process:
    return Process(pid, 1, "a.py", tuple(Thread(pid + number, wait) for number, wait in enumerate(waits)), **more)


def knot(*processes: Process, moving: tuple[int, ...] = ()) -> tuple[list[int], list[int]] | None:
    found = find_knot(Snapshot(0.0, processes), lambda pid, tid: tid not in moving)
    return ([p.pid for p in found.processes], [p.pid for p in found.circle]) if found else None


def pipe(*by: int) -> ThreadWait:
    return ThreadWait("pipe", by, "pipe")


def test_two_that_wait_for_each_other_hold_up_a_third() -> None:
    a, b, victim = process(10, pipe(20)), process(20, pipe(10)), process(30, ThreadWait("child", (10,)))
    assert knot(a, b, victim) == ([10, 20, 30], [10, 20])


@pytest.mark.parametrize(
    "wait",
    [ThreadWait("clock"), ThreadWait("outside"), ThreadWait("running"), ThreadWait("disk"), ThreadWait("unknown")],
)
def test_whatever_may_end_by_itself_wakes_all_that_wait_for_it(wait: ThreadWait) -> None:
    assert knot(process(10, pipe(20)), process(20, wait)) is None


def test_a_thread_that_ran_lately_can_release_the_lock_of_another() -> None:
    lock = ThreadWait("lock", (10,))
    assert knot(process(10, lock, lock)) == ([10], [10])
    assert knot(process(10, lock, lock), moving=(11,)) is None


def test_a_circle_of_known_owners_hangs_although_another_thread_works() -> None:
    def wants(owner: int) -> ThreadWait:
        return ThreadWait("lock", (10,), "a lock", (owner,))

    assert knot(process(10, ThreadWait("running"), wants(12), wants(11)), moving=(10,)) == ([10], [10])
    assert knot(process(10, ThreadWait("running"), wants(12), wants(10)), moving=(10,)) is None
    assert knot(process(10, ThreadWait("running"), wants(ENDED)), moving=(10,)) == ([10], [10])


def test_locks_asked_for_with_a_timeout_are_a_circle_only_if_all_hold_them() -> None:
    def tries(owner: int) -> ThreadWait:
        return ThreadWait("lock", (10,), "a lock", (owner,), timed=True)

    ahead = Snapshot(0.0, (process(10, ThreadWait("clock"), tries(12), tries(11)),))
    found = find_retries(ahead)
    assert found is not None
    assert sorted(found.core) == [11, 12]
    assert find_retries(Snapshot(0.0, (process(10, ThreadWait("clock"), tries(12), ThreadWait("clock")),))) is None


def test_a_worker_with_a_lock_is_the_cause_and_not_the_library_threads_that_serve_it() -> None:
    threading = "/usr/lib/python3.11/threading.py"
    run = Frame(threading, 982, "run")
    feeds: Stack = (Frame(threading, 327, "wait"), Frame("/usr/lib/python3.11/queues.py", 231, "_feed"), run)
    serves: Stack = (
        Frame("/usr/lib/python3.11/socket.py", 294, "accept"),
        Frame("/lib/python3.11/s.py", 1, "_serve"),
        run,
    )
    lock = ThreadWait("lock", (20,))
    worker = process(
        20, lock, lock, ThreadWait("socket", (10, 20)), stacks=(LOCK_STACK, feeds, serves), tids=(20, 21, 22)
    )
    parent = process(10, pipe(20))
    found = find_knot(Snapshot(0.0, (parent, worker)), lambda pid, tid: True)
    assert found is not None
    assert [each.pid for each in found.circle] == [20]
    assert found.threads == {10, 20}


def test_a_parent_that_only_waits_for_its_children_is_their_victim() -> None:
    shared = ThreadWait("shared lock", (10, 20, 30))
    parent = process(10, ThreadWait("child", (20, 30)))
    assert knot(parent, process(20, shared), process(30, shared)) == ([10, 20, 30], [20, 30])


def test_a_signal_may_set_the_flag_that_a_main_thread_asks_for_but_brings_no_data() -> None:
    for on, hangs in (("a flag", False), (f"data in pipe 7{AGAIN}", True)):
        asks = process(20, ThreadWait("clock", (20,), on, polls="asks"), handles_signals=True, stacks=(LOCK_STACK,))
        found = find_knot(Snapshot(0.0, (asks,)), lambda pid, tid: False, polls=lambda pid, tid: True)
        assert (found is not None) == hangs


def test_a_launcher_is_the_victim_of_a_program_that_asks_for_what_it_could_give_itself() -> None:
    launcher = process(10, ThreadWait("child", (20,)))
    asks = process(20, ThreadWait("clock", (10, 20), "a flag", polls="asks"))
    found = find_knot(Snapshot(0.0, (launcher, asks)), lambda pid, tid: tid == 10, polls=lambda pid, tid: True)
    assert found is not None
    assert [each.pid for each in found.circle] == [20]


def test_a_parent_that_could_read_what_its_child_writes_is_a_cause() -> None:
    parent = process(10, ThreadWait("child", (20,)))
    writers = process(20, pipe(10, 20, 30)), process(30, pipe(10, 20, 30))
    assert knot(parent, *writers) == ([10, 20, 30], [10, 20, 30])


def test_a_process_outside_the_tree_may_always_answer() -> None:
    assert knot(process(10, pipe(10, 99))) is None


def test_a_reader_that_alone_holds_the_writing_end_waits_for_itself() -> None:
    assert knot(process(10, pipe(10))) == ([10], [10])


def test_a_handled_signal_may_end_the_wait_of_a_main_thread_unless_it_waits_for_a_lock() -> None:
    lock = ThreadWait("lock", (10,))
    assert knot(process(10, lock, handles_signals=True)) is None
    assert knot(process(10, lock, handles_signals=True, stacks=(EVENT_STACK,))) is None
    assert knot(process(10, lock, handles_signals=True, stacks=(LOCK_STACK,))) == ([10], [10])


def test_a_handler_of_signals_may_write_into_a_pipe_that_its_process_reads() -> None:
    reads = process(10, pipe(10), handles_signals=True, stacks=(LOCK_STACK,))
    assert knot(reads) is None
    assert knot(process(10, pipe(10), stacks=(LOCK_STACK,))) == ([10], [10])


def rank(number: int, line: int, function: str | None, wait: ThreadWait = CLOCK, world_size: int = 3) -> Process:
    library = (Frame("/site-packages/torch/distributed/distributed_c10d.py", 9, function),) if function else ()
    stack = (*library, Frame("/home/train.py", line, "main"))
    return process(100 + 10 * number, wait, rank=number, world_size=world_size, stacks=(stack,))


def causes(*processes: Process, moving: tuple[int, ...] = ()) -> list[int | None]:
    history = History()
    for at in (0.0, 6.0):
        paces = {each.pid: {each.pid: Pace(0, 0, int(at) * (each.pid in moving))} for each in processes}
        history.add(Counters(at, paces, {}))
        history.observe(Snapshot(at, processes))
    found = find_divergence(Snapshot(6.0, processes), history)
    return [each.rank for each in found.cause] if found else []


def test_the_rank_in_another_collective_is_the_cause() -> None:
    assert causes(rank(0, 5, "all_reduce"), rank(1, 9, "barrier"), rank(2, 5, "all_reduce")) == [1]


@pytest.mark.parametrize(
    ("functions", "collective"), [(("_sync_buffers", "_pre_forward"), "_sync_buffers"), (("_pre_forward",), "forward")]
)
def test_a_forward_pass_that_synchronizes_is_in_a_collective(functions: tuple[str, ...], collective: str) -> None:
    inside = tuple(Frame("/torch/nn/parallel/distributed.py", 9, function) for function in functions)
    stack = (*inside, Frame("/a.py", 3, "evaluate"))
    process = Process(10, 1, "a.py", (), rank=0, world_size=3, stacks=(stack,))
    assert place_of(process) == RankPlace(collective, stack[-1])


def test_a_rank_that_waits_for_a_lock_is_the_cause() -> None:
    held = rank(2, 7, None, ThreadWait("lock", (120,)))
    assert causes(rank(0, 5, "all_reduce"), rank(1, 5, "all_reduce"), held) == [2]


def test_a_rank_whose_child_still_does_something_may_still_come() -> None:
    others = rank(0, 5, "all_reduce"), rank(1, 5, "all_reduce")
    parent = rank(2, 7, None, ThreadWait("child", (20,)))
    assert causes(*others, parent, process(20, ThreadWait("clock"))) == []
    assert causes(*others, parent, process(20, pipe(120)), moving=(20,)) == []
    assert causes(*others, parent, process(20, pipe(120))) == [2]


@pytest.mark.parametrize(
    "wait", [ThreadWait("running"), ThreadWait("clock"), ThreadWait("outside"), ThreadWait("disk")]
)
def test_a_rank_that_may_still_come_is_no_cause(wait: ThreadWait) -> None:
    assert causes(rank(0, 5, "all_reduce"), rank(1, 5, "all_reduce"), rank(2, 7, None, wait)) == []


def test_nothing_is_said_while_a_rank_moves_or_some_are_elsewhere() -> None:
    ranks = rank(0, 5, "all_reduce"), rank(1, 9, "barrier"), rank(2, 5, "all_reduce")
    assert causes(*ranks, moving=(110,)) == []
    assert causes(*ranks[:2]) == []


def test_ranks_that_are_at_one_place_and_move_nothing_are_all_the_cause() -> None:
    assert causes(*(rank(number, 5, "all_reduce") for number in range(3))) == [0, 1, 2]


def test_a_rank_of_mpi_waits_at_its_line_although_it_keeps_a_processor_busy() -> None:
    def polls(number: int, line: int, text: str) -> Process:
        stack = (Frame("/home/train.py", line, "main"),)
        return process(100 + 10 * number, ThreadWait("running"), rank=number, world_size=3, stacks=(stack,), text=text)

    barrier, late = "comm.Barrier()", "data = comm.recv(source=1)"
    ranks = polls(0, 5, barrier), polls(1, 5, barrier), polls(2, 9, late)
    assert causes(*ranks, moving=(100, 110, 120)) == [2]
    assert causes(*ranks[:2], polls(2, 9, "loss = model(data)"), moving=(100, 110, 120)) == []


def test_ranks_that_all_receive_are_all_the_cause() -> None:
    assert causes(rank(0, 5, "recv"), rank(1, 5, "recv"), rank(2, 7, "recv")) == [0, 1, 2]
