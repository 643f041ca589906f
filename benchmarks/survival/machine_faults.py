"""Faults of whole machines on open runs: killed, without power, stopped, cut off, a lid closed; joins and leaves.

    python benchmarks/survival/machine_faults.py --runs 20          goes on where an earlier call has stopped
    python benchmarks/survival/machine_faults.py --only 17          one run again, by its number; nothing is recorded
    python benchmarks/survival/machine_faults.py --table            the table of what was done so far

Each run is begun by `paceline train --open` on one host, and other hosts join by the code that its screen shows. Every
host is a network namespace with a folder of its own. Which faults come, and of which machine, follows from the number
of the run; the moments depend on the machine, too. A fault comes only while those that are left are a majority, and
when every shard is on two machines, so every run has to be finished by some machine. Needs the right to make network
namespaces, and `paceline[pair]`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from paceline.interfaces.testing.survival.faults import Picture
from paceline.interfaces.testing.survival.hosts import Host, hosts
from paceline.interfaces.testing.survival.nodes import belongs, fork_process
from paceline.interfaces.testing.survival.proofs import ALLOWED, applied_once, replayed
from paceline.runtime.runs.live import EventKind, Phase, RunEvent, read_events, read_live
from paceline.runtime.runs.record import read_record

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from commands import command  # noqa: E402
from harness import add_line, lines_of, write  # noqa: E402

#: A training pass takes a tenth of a second, until the faults are over.
JOB = """
import os, time

from paceline.interfaces.testing.survival.nodes import SlowNet, survival_job


class Net(SlowNet):
    def forward(self, x):
        if self.training and os.path.exists({hold!r}):
            time.sleep(0.1)
        return super().forward(x)


job = survival_job({batches}).with_(model=Net)
"""
#: (plan, whether machines come and go while it trains, batches): enough of them for the faults of a run.
PLANS = (
    ("downpour:shards=2", True, 6000), ("ring", True, 2500), ("ssp:bound=3", True, 6000),
    ("backup:backups=1", True, 4000), ("diloco:every=4", False, 5000),
)  # fmt: skip
MACHINES, PLACES = 10, 5  # hosts of a run; machines that may take part at the same time
PATIENCE = 90.0  # seconds that a machine may take on a busy host to join, to lead, or to compute again
BORNE = 5.0  # seconds of silence after which another machine may lead, or not
LIMIT = 240.0  # seconds without a further update, from the end of the faults to the end of every process

#: What may happen to a machine, and for how many seconds; 0: for ever.
FOR_EVER = (("kill", 0.0), ("power", 0.0))
SILENT = (("stop", 5.0), ("stop", 30.0), ("cut", 5.0), ("cut", 30.0))
LID = ("stop", 60.0)
SHORT = ("stop", 1.0)


@dataclass
class Machine:
    """A host on which a command of Paceline's takes part in the run."""

    host: Host
    folder: Path
    process: BaseProcess
    #: How it was ended, if it was: `kill`, `power` or `leave`; and whether it was silent for a time.
    ending: str = ""
    silent: bool = False
    #: When it began, and in how many seconds it had joined.
    begun: float = field(default_factory=time.time)
    joined: float | None = None

    @property
    def screen(self) -> str:
        file = self.folder / "screen.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def rank(self) -> int | None:
        """Its rank; None if it has not joined yet."""
        shown = re.findall(r"as rank (\d+)[;.]", self.screen)
        return int(shown[-1]) if shown else 0 if "others may join" in self.screen else None

    @property
    def processes(self) -> list[psutil.Process]:
        """Every process of it."""
        alive = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and belongs(process, str(self.folder)):
                    alive.append(process)
        return alive

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wrong_end(self) -> str:
        """Return what is wrong with how it has ended; empty if nothing."""
        code, screen = self.process.exitcode, self.screen
        right = {"kill": (-9,), "power": (-9,), "leave": (130,)}.get(self.ending, (0,))
        # A group goes on without a machine that was silent, even if that one has led it.
        allowed = (*ALLOWED, "no majority") if self.silent else ALLOWED
        refused = code == 1 and any(each in screen for each in allowed)
        if code is None:
            return f"{self.folder.name} hangs: {screen[-600:]}"
        if (code not in right and not refused) or "Traceback" in screen:
            return f"{self.folder.name} has ended with {code}: {screen[-1500:]}"
        return ""


@dataclass
class OpenRun:
    """A run, the machines that take part, and what has happened to them."""

    folder: Path
    plan: str
    #: Whether machines come and go while it trains.
    elastic: bool
    batches: int
    chance: random.Random
    bridge: str
    free: list[Host]
    machines: list[Machine] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    #: The codes with which machines have joined.
    codes: set[str] = field(default_factory=set)

    @property
    def path(self) -> Path | None:
        """The folder of the run at the machine that has come to lead it last."""
        jobs = [each for each in self.folder.glob("*/runs/*/job.pickle") if (each.parent / "run.json").exists()]
        return max(jobs, key=lambda job: job.stat().st_mtime_ns).parent if jobs else None

    @property
    def head(self) -> Machine:
        """The machine that leads."""
        path = self.path
        return next((each for each in self.machines if path and path.is_relative_to(each.folder)), self.machines[0])

    @property
    def events(self) -> list[RunEvent]:
        return read_events(path) if (path := self.path) else []

    @property
    def updates(self) -> int:
        """The updates that the head knows of; -1 where nothing trains."""
        live = read_live(path) if (path := self.path) else None
        return live.updates if live is not None and live.phase is Phase.TRAINING else -1

    @property
    def members(self) -> list[Machine]:
        """The machines with which the head trains."""
        ranks = Picture(self.events).ranks
        return [each for each in self.machines if not each.ending and each.process.is_alive() and each.rank in ranks]

    @property
    def over(self) -> bool:
        """Whether no machine trains any longer."""
        return not any(each.process.is_alive() for each in self.machines)

    # --- machines come ---

    def start(self, *words: str) -> Machine:
        """Start a command on a host of its own."""
        host, folder = self.free.pop(0), self.folder / f"machine-{len(self.machines)}"
        folder.mkdir()
        (folder / "job.py").write_text(JOB.format(hold=str(self.folder / "hold"), batches=self.batches))
        environment = {"OMP_NUM_THREADS": "1", "HOME": str(folder)}
        process = fork_process(folder, partial(command, *words), environment, folder / "screen.txt", host)
        self.machines.append(machine := Machine(host, folder, process))
        return machine

    def begin(self, machines: int) -> None:
        """Begin the run with so many machines."""
        (self.folder / "hold").touch()
        workers = str(PLACES if self.elastic else machines)
        options = ("--plan", self.plan, "--workers", workers, "--address", self.free[0].address)
        self.start("train", "job.py", "--open", "--quiet", *options)
        for _ in range(machines - 1):
            self.join()
        self.until(lambda: self.updates >= 0 and len(self.members) == machines, "the training on all machines")

    def join(self) -> Machine:
        """Let a machine join at the head."""
        head = self.head

        def shown() -> list[tuple[str, str]]:
            screen = head.screen
            places = re.findall(r"or: paceline join (\S+) \S+", screen)
            codes = re.findall(r"paceline join (?:\S+:\d+ )?(\d+-\S+)", screen)
            return [pair for pair in zip(places[-1:], codes[-1:], strict=False) if pair[1] not in self.codes]

        self.until(shown, "a code that no machine has used")
        ((place, code),) = shown()
        self.codes.add(code)
        machine = self.start("join", place, code, "--yes", "--quiet")
        self.until(lambda: machine.rank is not None or not machine.process.is_alive(), "the machine that joins")
        machine.joined = time.time() - machine.begun
        return machine

    def until(self, done: Callable[[], object], what: str, seconds: float = PATIENCE) -> float:
        """Wait until something is so, and return the seconds that it took; of a run that has ended, wait no longer."""
        begun = time.monotonic()
        while not done():
            if self.over:
                return time.monotonic() - begun
            if time.monotonic() > begun + seconds:
                raise TimeoutError(f"{what} has not come within {seconds:.0f} s")
            time.sleep(0.05)
        return time.monotonic() - begun

    # --- what happens to them ---

    @property
    def is_whole(self) -> bool:
        """Whether every shard is on two machines that take part, if there are two."""
        ranks = {each.rank for each in self.members}
        shards = Picture(self.events).views.values()
        return len(ranks) < 2 or all(len(ranks & {server % PLACES for server in shard}) > 1 for shard in shards)

    def draw(self) -> tuple[str, float, Machine | None] | None:
        """Draw what happens next, and to which machine; None if those that would be left are no majority."""
        chance, head, members = self.chance, self.head, self.members
        others = [each for each in members if each is not head]
        if self.elastic and (len(members) < 3 or chance.random() < 0.15) and len(members) < PLACES and self.free:
            return "join", 0.0, None
        if not others or len(members) < 2:
            return None
        if chance.random() < 0.45:
            if len(members) < 3:  # the other one leads only if it knows that this one is gone
                return "kill", 0.0, head
            return *chance.choice((*FOR_EVER, *SILENT, *SILENT, LID, SHORT)), head
        victim = chance.choice(others)
        if chance.random() < 0.4:
            return "leave", 0.0, victim
        return *chance.choice((*FOR_EVER, LID, LID, *SILENT[1::2])), victim

    def disturb(self, kind: str, seconds: float, victim: Machine | None) -> None:
        """Let something happen, and wait until the run trains on with the machines that are left."""
        head = self.head
        fault = {"kind": kind, "seconds": seconds, "of": "head" if victim is head else "other", "at": time.time()}
        self.faults.append(fault)
        print(f"  {kind} {seconds:g} s: {victim.folder.name if victim else 'a machine'} ({fault['of']})", flush=True)
        if victim is None:
            machine = self.join()
            self.until(lambda: machine in self.members, "a worker of the machine that has joined")
            fault["joined"], fault["computes"] = machine.joined, time.time() - machine.begun
        else:
            self._hurt(kind, seconds, victim)
            if victim is head and (victim.ending or seconds > BORNE):
                self.until(lambda: self._led(fault["at"], head) is not None, "another head")
        self._trains_on()
        if victim is head:
            fault["led"] = self._led(fault["at"], head)

    def _hurt(self, kind: str, seconds: float, victim: Machine) -> None:
        """Do something to a machine; what lasts is over on return."""
        if kind == "leave":
            victim.ending = kind
            os.kill(victim.process.pid or 0, signal.SIGINT)
            self.until(lambda: not victim.process.is_alive(), "the end of the machine that leaves")
        elif kind in ("kill", "power"):
            victim.ending = kind
            if kind == "power":
                victim.host.cut()
            victim.send(signal.SIGKILL)
        elif kind == "cut":
            victim.silent = True
            victim.host.cut()
            self._pass(seconds)
            victim.host.mend(self.bridge)
        else:
            victim.silent = True
            victim.send(signal.SIGSTOP)
            self._pass(seconds)
            victim.send(signal.SIGCONT)
        if victim.ending in ("kill", "leave"):
            self.free.append(victim.host)

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)

    def _led(self, at: float, before: Machine) -> float | None:
        """Return how long after a fault of the head another one leased batches, or formed a group; None if none has."""
        begun = [e.at for e in self.events if e.kind in (EventKind.LEASING, EventKind.GROUP) and e.at > at]
        return min(begun) - at if begun and self.head is not before else None

    def _trains_on(self) -> None:
        """Wait until the run has made further updates, as its head of then says."""
        start = time.time()

        def trains() -> bool:
            live = read_live(path) if (path := self.path) else None
            if live is None or live.phase is not Phase.TRAINING or live.heartbeat < start:
                return False
            counts.setdefault(path, live.updates)
            return live.updates > counts[path]

        counts: dict[Path | None, int] = {}
        self.until(trains, "further updates")

    # --- how it ends ---

    def end(self) -> list[str]:
        """Let the run end, and return what is wrong with it."""
        (self.folder / "hold").unlink()
        end = time.monotonic() + LIMIT
        updates = self.updates
        while not self.over and time.monotonic() < end:
            time.sleep(0.2)
            if self.updates != updates:
                updates, end = self.updates, time.monotonic() + LIMIT
        wrong = [each for machine in self.machines if (each := machine.wrong_end())]
        runs = [file.parent for file in self.folder.glob("*/runs/*/run.json")]
        ended = [run for run in runs if read_record(run).status == "done"]
        if not ended:
            wrong.append("the run has ended, though a majority lived")
        for run in ended:
            wrong += [each for each in (applied_once(run, self.batches), replayed(run)) if each]
        left = [process.pid for machine in self.machines for process in machine.processes]
        return [*wrong, *([f"processes {left} are left"] if left else [])]


@contextmanager
def prepared(number: int, folder: Path) -> Iterator[OpenRun]:
    """A run that has not begun, and its hosts; whatever is left of it is ended after the block."""
    plan, elastic, batches = PLANS[number % len(PLANS)]
    bridge = f"pm{os.getpid() % 9973}"
    with hosts(MACHINES, bridge) as free:
        run = OpenRun(folder, plan, elastic, batches, random.Random(number), bridge, list(free))
        try:
            yield run
        finally:
            for machine in run.machines:
                machine.send(signal.SIGKILL)
                machine.process.kill()
                machine.process.join(10.0)


def one(number: int, faults: int, keep: Path | None) -> dict[str, Any]:
    """Make one run, and return what came of it."""
    folder = Path(tempfile.mkdtemp(prefix=f"machines-{number}-", dir=keep))
    begun, load = time.time(), os.getloadavg()[0]
    with prepared(number, folder) as run:
        print(f"run {number}: {run.plan}", flush=True)
        try:
            run.begin(run.chance.choice((2, 3, 4)) if run.elastic else run.chance.choice((3, 4)))
            for _ in range(faults):
                run.until(lambda: run.is_whole, "a backup of every shard")
                event = run.draw()
                if event is None or run.over:
                    break
                time.sleep(run.chance.random() * 2)
                run.disturb(*event)
            wrong = run.end()
        except TimeoutError as error:
            screens = "\n".join(f"{each.folder.name}: {each.screen[-600:]}" for each in run.machines)
            wrong = [f"hangs: {error}\n{screens}"]
    row = {
        "number": number, "plan": run.plan, "faults": run.faults, "seconds": round(time.time() - begun, 1),
        "load": round(load, 1), "wrong": wrong,
    }  # fmt: skip
    print(f"  {row['seconds']} s: {wrong[0][-1500:] if wrong else 'as it should be'}", flush=True)
    if not wrong:
        shutil.rmtree(folder)
    return row


# --- many runs, and what they come to ---

#: What must not be, and by which words a run says that it was.
OUTCOMES = {
    "hangs": ("hangs",), "not exactly once": ("were applied twice", "never", "gaps", "did not make"),
    "replays differ": ("replay has other bits",), "ended though a majority lived": ("though a majority lived",),
}  # fmt: skip


def times(values: Sequence[float]) -> dict[str, Any]:
    """Return the count, the median, the 95th percentile and the greatest of some seconds."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    figures = {"p50": statistics.median(ordered), "p95": p95, "most": ordered[-1]}
    return {"count": len(ordered), **{name: round(value, 2) for name, value in figures.items()}}


def name_of(fault: dict[str, Any]) -> str:
    lasts = f" {fault['seconds']:g} s" if fault["seconds"] else ""
    return fault["kind"] + lasts + (" of the head" if fault["of"] == "head" else "")


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Print what the runs have come to, and write it."""
    faults = [fault for row in rows for fault in row["faults"]]
    kinds = sorted({name_of(fault) for fault in faults})
    led = {kind: times([f["led"] for f in faults if name_of(f) == kind and f.get("led") is not None]) for kind in kinds}
    counts = {kind: sum(name_of(fault) == kind for fault in faults) for kind in kinds}
    wrong = [each for row in rows for each in row["wrong"]]
    outcomes = {name: sum(any(word in each for word in words) for each in wrong) for name, words in OUTCOMES.items()}
    joined = [fault["computes"] for fault in faults if "computes" in fault]
    print(f"{'what happened':26}{'times':>6}   another head led after, p50 / p95 / most")
    for kind in kinds:
        each = led[kind]
        shown = (
            f"{each['p50']:.2f} / {each['p95']:.2f} / {each['most']:.2f} s of {each['count']}" if each["count"] else ""
        )
        print(f"{kind:26}{counts[kind]:6}   {shown}")
    print(
        f"{len(faults)} in {len(rows)} runs, of which {sum(bool(row['wrong']) for row in rows)} were wrong: {outcomes}"
    )
    figures = {
        "runs": len(rows), "happened": len(faults), "of_heads": sum(f["of"] == "head" for f in faults),
        "kinds": counts, "led_after": {kind: each for kind, each in led.items() if each["count"]},
        "computes_after_joining": times(joined), "outcomes": outcomes,
        "wrong": [f"{row['number']} {row['plan']}: {row['wrong'][0][:300]}" for row in rows if row["wrong"]],
        "load": [min(row["load"] for row in rows), max(row["load"] for row in rows)] if rows else [],
    }  # fmt: skip
    write(figures, "result-machines.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--faults", type=int, default=6, help="of a run, at most")
    parser.add_argument("--only", type=int, help="one run, by its number; nothing is recorded")
    parser.add_argument("--until", help="begin no run after this time of day, as in 15:50")
    parser.add_argument("--keep", type=Path, help="keep the folders of runs that failed here")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that no machine is left
    file = HERE / "machines.jsonl"
    known = {row["number"] for row in lines_of(file)}
    numbers = range(options.first, options.first + options.runs) if options.only is None else [options.only]
    for number in () if options.table else numbers:
        if options.only is None and number in known:
            continue
        if options.until and time.strftime("%H:%M") >= options.until:
            break
        row = one(number, options.faults, options.keep)
        if options.only is None:
            add_line(file, row)
    if options.only is None:
        table(sorted(lines_of(file), key=lambda row: row["number"]))


if __name__ == "__main__":
    main()
