"""The process tree, read from /proc: nothing is attached to, and nothing in the program changes."""

from __future__ import annotations

import linecache
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.concurrency.watcher.polling import asked, tasks_of
from paceline.concurrency.watcher.processes.holders import file_of
from paceline.concurrency.watcher.processes.interpreter import Standing
from paceline.concurrency.watcher.processes.java import is_own_thread
from paceline.concurrency.watcher.samples import (
    Counters,
    Frame,
    Pace,
    Process,
    ProcessWork,
    Snapshot,
    Thread,
    ThreadWait,
)
from paceline.concurrency.watcher.waits import NO_END, Waits, children_of, parent_of, state_of, threads_of

# The end of a pipe that does not come: a child has ended, but what it left in the background keeps the pipe open.

_CHANGES = "anon_inode:inotify"  # what one waits for that follows a file


def kept_open(waits: Waits, pid: int, wait: ThreadWait) -> ThreadWait:
    """Return a wait for the end of a pipe as one that nothing ends, if what keeps the pipe open is not meant to end.

    So after `subprocess.run("server &", shell=True, capture_output=True)`: the child has ended, and what it has started
    in the background has inherited the pipe. The wait itself where that is not so.
    """
    if wait.kind != "pipe" or not wait.by or pid in wait.by or not any(map(_has_ended, children_of(pid))):
        return wait
    if any(_is_below(each, pid) or not _lasts(waits, each) for each in wait.by):
        return wait
    pipes = {f"pipe:[{each}]" for each in re.findall(r"pipe (\d+)", wait.on)}
    names = ", ".join(f"pid {each} ({_name(each)})" for each in wait.by if pipes & _opened(each))
    return wait._replace(by=(), on=f"the end of {wait.on.replace('data in ', '')}, kept open by {names}", kept=True)


def _lasts(waits: Waits, pid: int) -> bool:
    """Whether a process listens for connections, sleeps for ever or does nothing but sleep and print."""
    if waits.holders.serves(pid):
        return True
    thread_waits = [asked(waits, pid, tid, waits.of(pid, tid, state_of(pid, tid))) for tid in threads_of(pid)]
    return bool(thread_waits) and all(each.on in (NO_END, _CHANGES) or each.polls == "idles" for each in thread_waits)


def _has_ended(pid: int) -> bool:
    return state_of(pid, pid) == "Z"


def _opened(pid: int) -> set[str]:
    """Return what a process has open: others of `ThreadWait.by` may only be about to receive the pipe."""
    files: set[str] = set()
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                files.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return files


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        pid = parent_of(pid)
        if pid == ancestor:
            return True
    return False


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return "ended"


#: Python always handles SIGINT; SIGCHLD and SIGWINCH wake no program; crash handlers handle a crash; 32 and 33 are
#: glibc's own, SIGRTMAX - 3 is the watcher's. Any other signal that is handled may be sent to wake the program.
_IDLE_SIGNALS = (2, 4, 5, 6, 7, 8, 11, 13, 17, 28, 31, 32, 33, 61)
WAKING_SIGNALS = ~sum(1 << number - 1 for number in _IDLE_SIGNALS)
#: Node handles SIGUSR1 and SIGTERM of its own: to start its debugger, and to leave the terminal as it was.
_NODE, _SIGNALS_OF_NODE = ("node", "nodejs"), 1 << 9 | 1 << 14
#: SIGHUP, SIGQUIT and SIGTERM: launchers handle them in ranks, and after them a rank ends and meets no other.
_ENDING_A_RANK = 1 << 0 | 1 << 2 | 1 << 14
#: The variables of MPI's launchers, and SIGUSR1, by which its library learns that another rank has failed.
_OF_MPI, _FAILURE_IN_MPI = ("PMI_RANK", "OMPI_COMM_WORLD_RANK"), 1 << 9
_ALARMS = sum(1 << number - 1 for number in (14, 26, 27))  # SIGALRM, SIGVTALRM, SIGPROF: clocks
#: Processes outside the tree that a snapshot reads at most.
MOST_OUTSIDE = 32
#: How multiprocessing starts its processes: `-c "from multiprocessing.spawn import spawn_main; ..."`.
_HELPER = re.compile(r"^from (multiprocessing\.\w+) import")
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def tree(roots: Iterable[int]) -> tuple[int, ...]:
    """Return the processes and all their descendants that run, without the watcher itself."""
    pids: list[int] = []
    ahead = list(roots)
    while ahead:
        pid = ahead.pop()
        if pid in pids or pid == os.getpid() or not Path(f"/proc/{pid}").exists():
            continue
        pids.append(pid)
        for tid in _numbers(f"/proc/{pid}/task"):
            ahead += map(int, read(f"/proc/{pid}/task/{tid}/children").split())
    return tuple(sorted(pids))


def counters(pids: Iterable[int]) -> Counters:
    """Read the counters of processes: one small file for each thread, and two for each process."""
    threads: dict[int, dict[int, Pace]] = {}
    work: dict[int, ProcessWork] = {}
    for pid in pids:
        # A zombie does nothing any more, and its parent may leave it there for ever.
        if (fields := _stat(f"/proc/{pid}/stat"))[:1] in ([], ["Z"]):
            continue
        paces = {}
        for tid in _numbers(f"/proc/{pid}/task"):
            numbers = read(f"/proc/{pid}/task/{tid}/schedstat").split()
            if len(numbers) == 3:
                paces[tid] = Pace(*map(int, numbers))
        if paces:
            threads[pid], work[pid] = paces, _work(pid, fields)
    return Counters(time.monotonic(), threads, work)


def snapshot(pids: Iterable[int]) -> Snapshot:
    """Read what every thread of the processes waits for. Costs some hundred times as much as a reading.

    Processes outside the tree that one of them waits for are read too, and those that these wait for.
    """
    tree_pids = tuple(pids)
    waits = Waits(tree_pids)
    processes = {pid: p for pid in tree_pids if (p := _process(pid, waits)) is not None}
    ahead = _waited_for(processes.values())
    while ahead and len(processes) < len(tree_pids) + MOST_OUTSIDE:
        pid = ahead.pop(0)
        if pid not in processes and (outside := _process(pid, waits)) is not None:
            processes[pid] = replace(outside, outside=True)
            ahead += _waited_for([processes[pid]])
    return Snapshot(time.monotonic(), tuple(processes.values()), time.time())


def _waited_for(processes: Iterable[Process]) -> list[int]:
    return sorted({pid for each in processes for thread in each.threads for pid in thread.wait.by})


def _process(pid: int, waits: Waits) -> Process | None:
    fields = _stat(f"/proc/{pid}/stat")
    if not fields or fields[0] == "Z":
        return None
    caught, threads = caught_signals(pid), []
    java = waits.java(pid) is not None
    for tid in _numbers(f"/proc/{pid}/task"):
        if java and is_own_thread(pid, tid):
            continue
        state = _stat(f"/proc/{pid}/task/{tid}/stat")
        if state:
            wait = kept_open(waits, pid, asked(waits, pid, tid, waits.of(pid, tid, state[0])))
            # A clock's handler may end any wait of the main thread.
            rings = tid == pid and caught & _ALARMS != 0
            threads.append(Thread(tid, wait._replace(timed=True, polls="", rings=True) if rings else wait))
    interpreter = waits.interpreter(pid)
    stacks = interpreter.stacks(pid) if interpreter else {}
    # The tasks of a stopped process do nothing either, whatever they wait for.
    if interpreter is not None and not any(each.wait.kind == "stopped" for each in threads):
        threads += tasks_of(waits, pid, interpreter)
    # A launcher's variables are inherited by whatever a rank starts; a process group is the process's own.
    standing = (interpreter and interpreter.group) or _rank(pid) or (interpreter and interpreter.standing(pid))
    rank, world_size = standing or (None, 0)
    tids, thread_stacks = tuple(stacks), tuple(stacks.values())
    text = _text_of(pid, thread_stacks[0][0]) if thread_stacks and rank is not None else ""
    parent, command = int(fields[1]), _command(pid)
    signals = caught & WAKING_SIGNALS & ~_ignored(pid, command, rank) != 0
    began = interpreter.began(pid) if interpreter else 0
    return Process(
        pid, parent, command, tuple(threads), signals, rank, world_size, thread_stacks, tids, text=text, began=began
    )


def _ignored(pid: int, command: str, rank: int | None) -> int:
    """Return the signals that a process handles for what is not its own program."""
    if command in _NODE:
        return _SIGNALS_OF_NODE
    if rank is None:
        return 0
    return _ENDING_A_RANK | (_FAILURE_IN_MPI if any(name in _variables(pid) for name in _OF_MPI) else 0)


def _text_of(pid: int, frame: Frame) -> str:
    """Return the source line of a frame, which names the function of C that it calls."""
    return linecache.getline(file_of(pid, frame.file), frame.line).strip()


def caught_signals(pid: int) -> int:
    """Return the bit mask of the signals that a process handles itself."""
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16)
    return 0


def may_be_read(pid: int) -> bool:
    """Whether this user may see what the threads of a process wait for."""
    try:
        Path(f"/proc/{pid}/syscall").read_bytes()
    except PermissionError:
        return False
    except OSError:  # it has just ended
        return True
    return True


def read(file: str) -> str:
    """Return a file of /proc, or nothing if its process has ended or belongs to another user."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 65536).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _numbers(folder: str) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    return []


def _stat(file: str) -> list[str]:
    """Return the fields of a stat file from the state on; the name before them may hold blanks and parentheses."""
    return read(file).rpartition(")")[2].split()


def _work(pid: int, stat: list[str]) -> ProcessWork:
    counted = dict(line.split(": ") for line in read(f"/proc/{pid}/io").splitlines() if ": " in line)
    faults = int(stat[7]) + int(stat[9]) if len(stat) > 9 else 0
    return ProcessWork(faults, int(counted.get("rchar", 0)), int(counted.get("wchar", 0)))


def _command(pid: int) -> str:
    words = [word for word in read(f"/proc/{pid}/cmdline").split("\0") if word]
    helper = next((match for word in words if (match := _HELPER.search(word))), None)
    program = os.path.basename(words[0]) if words else read(f"/proc/{pid}/comm").strip()
    if not program.startswith("python"):
        return program
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    script = next((word for word in words[1:] if word.endswith(".py")), "")
    if helper is not None and "-c" in words:
        return helper[1]
    return (
        os.path.basename(script) or module or os.path.basename(words[0] if words else read(f"/proc/{pid}/comm").strip())
    )


def _rank(pid: int) -> Standing | None:
    """Return the standing that a launcher has set in a process's environment."""
    variables = _variables(pid)
    for rank, size in RANK_VARIABLES:
        if variables.get(rank, "").isdecimal() and variables.get(size, "").isdecimal():
            return Standing(int(variables[rank]), int(variables[size]))
    return None


def _variables(pid: int) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in read(f"/proc/{pid}/environ").split("\0") if "=" in entry)
