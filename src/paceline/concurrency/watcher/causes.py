"""The one line that says why a program hangs, and what to do about that cause. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from paceline.concurrency.watcher.graph import DeadlockSet
from paceline.concurrency.watcher.ranks import POINT_TO_POINT, Divergence, RankPlace
from paceline.concurrency.watcher.samples import A_RESULT, AN_END, ENDED, Process, Thread, ThreadWait

_ORDER = "take locks in one order everywhere, or release the first before the second"
_REMEDIES = {
    "rank": "let every rank call the same collectives in the same order: look for a condition on the rank, on data or "
    "on an exception around the lines above",
    "together": "let every rank call it with the same group, sizes, types and root, and as often: look for what "
    "differs between the ranks before this line",
    "apart": "let that rank reach the collective also when what it waits for fails: give the wait a deadline",
    "gil": "do not wait in C code for a lock while holding Python's interpreter lock: release it around the wait",
    "monitor": "enter monitors (`synchronized`) in one order everywhere, and wait for no other thread inside one",
    "order": _ORDER,
    "again": "take it once, or make it an RLock",
    "handler": "take no lock in a handler of signals: set a flag there, and act on it in the program",
    "ended": "release it on every path: `with` does so also when the work fails",
    "lock": "release it on every path: `with` does so also when the work fails",
    "generator": "do not yield inside a `with` block that holds a lock, or close the generator before others need it",
    "forked": "use the start method spawn, or fork before any thread starts",
    "condition": "notify after every change of what is waited for, also when the change fails",
    "event": "set it on every path, also when the work fails",
    "barrier": "let as many threads arrive as it counts, also when one fails: call `abort()` then",
    "semaphore": "release a slot on every path: `with` does so also when the work fails",
    "get": "put an item, or an end mark when there is no more, on every path, also when the producer fails",
    "put": "take items until the producer has ended, also when the consumer fails",
    "task_done": "call `task_done()` for each item that was taken: in a `finally`, so also when the work fails",
    "future": "set a result or an exception on every path, and wait for no task of an executor in its own tasks",
    "import": "import it before threads need it, and wait for no thread while a module is imported",
    "shared lock": "release it on every path; a process that may be killed holds a lock of the file system "
    "(`fcntl.flock`) instead, which ends with it",
    "pipe": "read from a child's pipes while it runs (`communicate()`), and close the ends that a process does not "
    "use: a reader only sees the end when no writer is left",
    "kept": "redirect the output of what is to go on in the background (`> log 2>&1 &`), or write to a file instead "
    "of a pipe: the end of a pipe only comes when its last writer ends",
    "named pipe": "let one process open a named pipe to write and another one to read, several in one order, and do "
    "so also when it fails: opening waits for the other end",
    "socket": "let one side read while the other writes: two that both wait to read, or both to write, never move",
    "child": "read what a child writes before waiting for its end, and end what it waits for",
    "thread": "let the thread end on every path, and wait for no thread in itself",
    "joined": "wait for the end of no thread or task while holding what it needs to end",
    "messages": "let one side send before it receives, and the other receive before it sends",
    "task": "let what is to set, notify, put, release or end it do so on every path, also when it fails or is "
    "cancelled",
    "asks": "let what gives it, or is to end it, also do so when it fails, and give waits a deadline",
    "pool": "read what the workers print, and look at the pool's initializer and at what a worker imports; start "
    "processes under `if __name__ == '__main__':` only",
    "pool result": "let what is sent through a pool be picklable in both directions",
    "file lock": "take locks on files in one order everywhere",
    "stopped": "continue it with `kill -CONT PID`, or find what stopped it: Ctrl-Z, or reading the terminal in the "
    "background",
}
#: What would have to happen, and nothing is left that could do it.
_MISSING = {
    "lock": "release it",
    "semaphore": "release a slot",
    "event": "set it",
    "condition": "notify it",
    "barrier": "arrive as well",
    "get": "put an item into it",
    "put": "take an item out of it",
    "task_done": "call task_done()",
    "future": "set its result",
    "shared lock": "release it",
    "import": "finish the import",
    "task": "end that wait",
    "pipe": "write to it or close it",
}
_WAITS = {"child", "thread"}  # for an end: what the others wait for is nearer to the cause
#: What a process does that is ahead of the others at a queue: no one holds a queue as one holds a lock.
_AT_QUEUE = {"get": "reads from", "put": "writes to"}
#: Waits of the cause that one line lists.
_MOST = 4


class Cause(NamedTuple):
    """Why a program hangs."""

    words: str
    remedy: str


class Names:
    """What threads and processes are called, for readers."""

    def __init__(self, processes: Iterable[Process]) -> None:
        all_processes = tuple(processes)
        self._by_thread = {thread.tid: (process, thread) for process in all_processes for thread in process.threads}
        self._alone = all_processes[0] if len(all_processes) == 1 else None

    def thread(self, tid: int, current: Process | None = None) -> str:
        """Return the name of a thread or task, with its process where that is another one than here, or the only one.

        A process with one thread that hangs is called by its own name.
        """
        current = current or self._alone
        if tid == ENDED:
            return "a thread that has ended"
        process, thread = self._by_thread.get(tid, (current, None))
        name = (thread.task if thread else "") or (process.subject_of(tid).name if process else "")
        main = process is not None and process.pid == tid
        label = "the main thread" if main and not name else name if thread and thread.task else f"thread {name or tid}"
        if process is None or (current is not None and process.pid == current.pid):
            return label
        return process.short if main else f"{label} of {process.short}"


def thing(process: Process, thread: Thread, names: Names) -> str:
    """Return what a thread waits for, and who holds it."""
    wait, subject = thread.wait, process.subject_of(thread.tid)
    what = wait.on if wait.kept else subject.what or wait.on
    if not wait.owners:
        return what + (f", held by {subject.holder}" if subject.holder else "")
    holders = " and ".join(names.thread(owner, process) for owner in wait.owners)
    if wait.on == A_RESULT:
        return f"{wait.on}, which {holders} delivers"
    if wait.on in (AN_END, "the end of a task"):
        return f"the end of {holders}"
    if subject.kind in _AT_QUEUE:
        return f"{what}, which {holders} {_AT_QUEUE[subject.kind]} first"
    return f"{what}, held by {holders}"


def cause_of(knot: DeadlockSet, causes: tuple[Process, ...], kind: str = "") -> Cause:
    """Return why threads wait that nothing can wake.

    Args:
        knot: The threads.
        causes: The processes in which the cause is.
        kind: Of the cause, where that is known already.
    """
    names = Names(knot.processes)
    stopped = [process for process in causes if process.main.kind == "stopped"]
    if stopped:
        return Cause(f"{_listed(each.short for each in stopped)} {_is(len(stopped))} stopped", _REMEDIES["stopped"])
    if kind == "pool":
        return Cause(
            f"the workers of the pool of {_listed(each.short for each in causes)} end as soon as they start, and no "
            "result ever comes",
            _REMEDIES["pool"],
        )
    by_tid = {thread.tid: (process, thread) for process in causes for thread in process.threads}
    core = [by_tid[tid] for tid in knot.core if tid in by_tid]
    if core:
        return _circle(core, names)
    return _nothing_left(knot, causes, names)


def _circle(core: list[tuple[Process, Thread]], names: Names) -> Cause:
    """Tell of threads of which each holds what the one before it waits for."""
    process, thread = core[0]
    subject, what = process.subject_of(thread.tid), thing(process, thread, names).partition(", held by ")[0]
    who, kinds = names.thread(thread.tid), {each.wait.kind for _, each in core}
    if ENDED in thread.wait.owners:
        if thread.wait.on == A_RESULT:
            words = f"{who} waits for {A_RESULT}, and the thread that delivers them has ended: it could not read one"
            return Cause(words, _REMEDIES["pool result"])
        return Cause(f"{who} waits for {what}, whose holder has ended without releasing it", _REMEDIES["ended"])
    if len(core) == 1:
        if subject.handler:
            words = f"{subject.handler}, waits for {what}, which {who} holds: the signal interrupted it"
            return Cause(words, _REMEDIES["handler"])
        if thread.wait.on in (AN_END, "the end of a task"):
            return Cause(f"{who} waits for its own end", _REMEDIES["thread"])
        return Cause(f"{who} waits for {what}, which it holds itself", _REMEDIES["task" if thread.task else "again"])
    links = (f"{names.thread(t.tid)} waits for {thing(p, t, names)}" for p, t in core[:_MOST])
    more = f"; {len(core) - _MOST} more threads follow in the circle" * (len(core) > _MOST)
    kinds |= {p.subject_of(t.tid).kind for p, t in core}
    kinds |= {"joined" for _, each in core if each.wait.on in (AN_END, "the end of a task")}
    kind = next((each for each in ("gil", "monitor", "import", "joined") if each in kinds), "order")
    return Cause("a circle: " + "; ".join(links) + more, _REMEDIES[kind])


def _nothing_left(knot: DeadlockSet, causes: tuple[Process, ...], names: Names) -> Cause:
    """Tell of threads that wait for what nothing is left to give."""
    waiting = [(p, t) for p in causes for t in p.threads if t.tid in knot.threads]
    roots = [(p, t) for p, t in waiting if not t.wait.owners and _kind(p, t) not in _WAITS]
    roots = [each for each in roots if not is_loop(*each)] or roots or waiting
    asks = any(thread.wait.polls == "asks" for _, thread in roots)
    by_wait: dict[str, list[tuple[Process, Thread]]] = {}
    for process, thread in roots:
        by_wait.setdefault(_with_needed(process, thread, names), []).append((process, thread))
    links = [
        f"{_listed(names.thread(t.tid) for _, t in of)} {_wait(len(of))} for {what}" for what, of in by_wait.items()
    ]
    ends = [f"{names.thread(t.tid)} waits for {thing(p, t, names)}" for p, t in waiting if _kind(p, t) in _WAITS]
    others = ends if len({p.pid for p, _ in waiting}) > 1 and (causes[0], waiting[0][1]) not in roots else []
    words = "; ".join((links + [each for each in others if each not in links])[:_MOST])
    process, thread = roots[0]
    kind, subject = _kind(process, thread), process.subject_of(thread.tid)
    if subject.holder.startswith("the suspended"):
        return Cause(words, _REMEDIES["generator"])
    if "fork" in subject.holder:
        return Cause(words, _REMEDIES["forked"])
    if thread.wait.kept:
        return Cause(f"{words}, although its child has ended", _REMEDIES["kept"])
    if len(by_wait) + len(others) == 1 and kind in _MISSING and not subject.holder and "room in" not in words:
        words += f": nothing is left that could {_MISSING[kind]}"
    if others and kind == "pipe":
        return Cause(words, _REMEDIES["child"])
    return Cause(words, _REMEDIES["asks" if asks and not subject.kind else kind if kind in _REMEDIES else "lock"])


def _kind(process: Process, thread: Thread) -> str:
    wait = thread.wait
    return "thread" if wait.on == AN_END else process.subject_of(thread.tid).kind or wait.kind


def is_loop(process: Process, thread: Thread) -> bool:
    """Whether a thread runs an event loop whose tasks are reported."""
    tasks = any(each.task for each in process.threads) and not thread.task and not thread.wait.owners
    return tasks and any(frame.function == "_run_once" for frame in process.stack_of(thread.tid))


def _with_needed(process: Process, thread: Thread, names: Names) -> str:
    wait = thread.wait
    return thing(process, thread, names) + needed(process, wait)


def needed(process: Process, wait: ThreadWait) -> str:
    """Return which other processes could end a wait."""
    others = [pid for pid in wait.by if pid != process.pid]
    if not others or wait.kind == "child" or wait.owners:
        return ""
    needs = "held by" if wait.kind == "file lock" else "which needs"
    return f", {needs} " + ", ".join(f"pid {pid}" for pid in others[:_MOST])


def _listed(names: Iterable[str]) -> str:
    each = list(names)
    return f"{', '.join(each[:-1])} and {each[-1]}" if len(each) > 1 else each[0]


def _is(count: int) -> str:
    return "are" if count > 1 else "is"


def _wait(count: int) -> str:
    return "wait" if count > 1 else "waits"


def cause_of_ranks(divergence: Divergence, names: Names) -> Cause:
    """Return why ranks do not meet."""
    if divergence.together:
        ranks, place = (*divergence.cause, *divergence.victims), divergence.places[divergence.cause[0].pid]
        if place.collective.lower() in POINT_TO_POINT:
            words = f"{_ranks(ranks)} are all in {place.collective} at {_line(place)}: none of them is at the other end"
            return Cause(words, _REMEDIES["messages"])
        words = f"{_ranks(ranks)} are all in {place.collective} at {_line(place)} and do not meet there"
        return Cause(words, _REMEDIES["together"])
    groups = [*_groups(divergence, divergence.cause, names), *_groups(divergence, divergence.victims, names)]
    apart = any(not divergence.places[process.pid].collective for process in divergence.cause)
    return Cause(", while ".join(groups), _REMEDIES["apart" if apart else "rank"])


def _groups(divergence: Divergence, ranks: tuple[Process, ...], names: Names) -> Iterator[str]:
    """Iterate over the places at which ranks are, with the ranks at each."""
    places: Mapping[RankPlace, list[Process]] = {}
    for process in ranks:
        places.setdefault(divergence.places[process.pid], []).append(process)  # type: ignore[attr-defined]
    for place, group in places.items():
        does = f"in {place.collective}" if place.collective else ""
        main = next((each for each in group[0].threads if each.tid == group[0].pid), None)
        if not does and main is not None:
            yield f"{_ranks(group)} {_wait(len(group))} for {thing(group[0], main, names)} at {_line(place)}"
        else:
            yield f"{_ranks(group)} {_is(len(group))} {does} at {_line(place)}"


def _ranks(ranks: Iterable[Process]) -> str:
    return _listed(each.name or f"rank {each.rank}" for each in ranks)


def _line(place: RankPlace) -> str:
    return f"{place.at.file.rpartition('/')[2]}:{place.at.line}"
