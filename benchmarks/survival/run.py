"""Real faults at random moments: SIGKILL, SIGSTOP, cut links and late nodes, on real runs of the cluster engine.

    python benchmarks/survival/run.py --seed 1 --runs 40            goes on where an earlier call has stopped
    python benchmarks/survival/run.py --seed 1 --only 17            one run again, by its number
    python benchmarks/survival/run.py --table                       the table of what was done so far

Each run trains a small job on 2 to 4 nodes, which are started as a launcher starts them. What happens to it follows
from the seed and the number of the run; the moments depend on the machine, too.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.testing.survival.faults import (
    IN_STEP,
    LINKS,
    SERVED,
    Fault,
    FaultKind,
    Injector,
    Picture,
    Times,
    times_of,
)
from paceline.testing.survival.hosts import hosts, possible
from paceline.testing.survival.nodes import NodeProgram, Nodes, started
from paceline.testing.survival.proofs import applied_once, ended_well, left_behind, replayed

from paceline.runtime.runs.live import EventKind, RunEvent, read_events
from paceline.runtime.runs.record import read_record
from paceline.runtime.runs.schema import from_dict, to_dict

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from harness import add_line, lines_of, write  # noqa: E402

#: (plan, batches or updates, seconds of a training pass): each takes about 20 s on two free cores.
PLANS = (
    ("downpour", 2400, 0.02), ("downpour:shards=2", 2400, 0.02), ("ssp:bound=3", 2000, 0.02),
    ("ring", 600, 0.02), ("backup:backups=1", 1000, 0.02), ("local_sgd:every=4", 1600, 0.02),
)  # fmt: skip
LIMIT = 600.0  # seconds that a run may take, and 25 s more for every fault: a busy machine takes twenty times as long
START, RECOVERY = 120.0, 25.0


@dataclass(frozen=True)
class Done:
    """One fault, and how long it took to be noticed and mended."""

    fault: Fault
    times: Times


@dataclass(frozen=True)
class Result:
    """What came of one run."""

    number: int
    seed: int
    plan: str
    nodes: int
    apart: bool  # on hosts of their own
    late: tuple[int, ...]
    faults: tuple[Done, ...]
    codes: tuple[int | None, ...]
    seconds: float
    accuracy: float | None
    #: What is wrong; empty if nothing is.
    wrong: tuple[str, ...] = ()
    #: How the run ended that did not finish, as the contract allows it; else empty.
    refused: str = ""
    again: int = 0  # batches that were computed again, as the run says


@dataclass
class Survival:
    """One run and its faults."""

    folder: Path
    number: int
    seed: int
    disturbed: bool = True
    apart: bool = False
    faults: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed * 1_000_003 + self.number)

    def run(self) -> Result:
        chance = self.chance
        plan, batches, step = PLANS[self.number % len(PLANS)]
        nodes = chance.choice((2, 3, 3, 4))
        late = (nodes - 1,) if self.disturbed and chance.random() < 0.25 else ()
        program = NodeProgram(plan, nodes, batches, step, seed=0)
        kinds = self._kinds(plan, nodes)
        begun = time.time()
        with ExitStack() as stack:
            bridge = f"pc{os.getpid() % 9973}"
            made = stack.enter_context(hosts(nodes, bridge)) if self.apart else []
            ran, head = stack.enter_context(started(self.folder, program, made, late))
            if late:
                time.sleep(2.0 + chance.random() * 2)
                for rank in late:
                    ran.start(rank, made[rank] if made else None, head)
            injector = Injector(ran, chance, made, bridge)
            copies = 2 if "ring" not in plan and "local" not in plan else 0
            self._disturb(ran, injector, kinds, copies)
            codes = self._end(ran, injector, begun)
            wrong = self._check(ran, injector, codes, batches)
            return self._result(ran, injector, program, late, codes, begun, wrong, copies)

    def _kinds(self, plan: str, nodes: int) -> list[FaultKind]:
        """Draw the faults."""
        if not self.disturbed:
            return []
        chance = self.chance
        if plan.startswith(("ring", "local")):
            return [chance.choice(IN_STEP + (LINKS * self.apart)) for _ in range(nodes - 1)]
        drawn = [chance.choice(SERVED + (LINKS * 3 * self.apart)) for _ in range(chance.choice((6, 7, 8)))]
        spare = max(0, nodes - 2)  # a lost node does not come back under this roster
        kept = []
        for kind in drawn:
            if kind is FaultKind.PART_NODES and nodes < 3:
                kind = FaultKind.SLOW_LINK
            if kind in (FaultKind.KILL_NODE, FaultKind.STOP_NODE, FaultKind.CUT_LINK):
                kind = kind if spare else FaultKind.KILL_PRIMARY
                spare -= kind is not FaultKind.KILL_PRIMARY
            kept.append(kind)
        return kept

    def _disturb(self, ran: Nodes, injector: Injector, kinds: Sequence[FaultKind], copies: int) -> None:
        chance, end = self.chance, time.time() + START
        while not (events := _events(ran)) or not any(_begun(event) for event in events):
            if _over(ran) or time.time() > end:
                return
            time.sleep(0.05)
        for kind in kinds:
            _nap(injector, 0.2 + chance.random() * 1.3)
            if _over(ran):
                return
            seconds = 10.0 if chance.random() < 0.4 else 0.5 + chance.random() * 5
            fault = injector.inject(kind, Picture(_events(ran)), seconds)
            if fault is None:
                continue
            print(f"  {kind} {fault.process} {fault.number} of rank {fault.rank}", flush=True)
            if chance.random() < 0.8:
                self._recover(ran, injector, fault, copies)

    def _recover(self, ran: Nodes, injector: Injector, fault: Fault, copies: int) -> None:
        """Wait until the fault is mended, or could not be."""
        end = time.time() + RECOVERY + fault.seconds
        while time.time() < end and not _over(ran):
            _nap(injector, 0.1)
            events = _events(ran)
            if not injector.poll():
                continue
            alive = len({event.rank for event in Picture(events).alive.values()})
            times = times_of(fault, events, min(copies, alive))
            waits = times.replicated if fault.shards and copies and fault.process == "server" else times.noticed
            if waits is not None or (fault.seconds and time.time() > fault.at + fault.seconds + 3):
                return

    def _end(self, ran: Nodes, injector: Injector, begun: float) -> list[int | None]:
        limit = LIMIT + 25.0 * len(injector.done)
        while time.time() < begun + limit:
            injector.poll()
            if _over(ran):
                break
            time.sleep(0.05)
        injector.poll(everything=True)
        return ran.wait(60.0)

    def _check(self, ran: Nodes, injector: Injector, codes: list[int | None], batches: int) -> list[str]:
        killed = {f.rank for f in injector.done if f.kind is FaultKind.KILL_NODE}
        wrong = [ended_well(ran, codes, killed)]
        if codes[0] == 0 and ran.run is not None:
            wrong.append(applied_once(ran.run, batches))
            if copies_of(read_record(ran.run).plan):
                wrong.append(replayed(ran.run))
        wrong.append(left_behind(ran))
        return [each for each in wrong if each]

    def _result(
        self, ran: Nodes, injector: Injector, program: NodeProgram, late: tuple[int, ...], codes: list[int | None],
        begun: float, wrong: list[str], copies: int,
    ) -> Result:  # fmt: skip
        events = _events(ran)
        seconds = time.time() - begun
        done = tuple(Done(fault, times_of(fault, events, _copies(fault, events, copies))) for fault in injector.done)
        accuracy, refused = None, ""
        if ran.run is not None and codes[0] == 0:
            record = read_record(ran.run)
            accuracy = record.summary.metrics.get("test_accuracy") if record.summary else None
        elif not wrong:
            refused = ran.running[0].out.read_text()[-400:]
        again = sum(event.why.count(",") + 1 for event in events if event.kind is EventKind.AGAIN)
        return Result(
            self.number, self.seed, program.plan, program.nodes, self.apart, late, done, tuple(codes), seconds,
            accuracy, tuple(wrong), refused, again,
        )  # fmt: skip


def copies_of(plan: str) -> bool:
    """Whether a plan has servers."""
    return plan.startswith(("downpour", "ssp", "backup"))


def _copies(fault: Fault, events: Sequence[RunEvent], copies: int) -> int:
    """Return how many servers a shard can have after a fault: nodes that were lost before have none."""
    alive = len(Picture([event for event in events if event.at <= fault.at]).ranks)
    return min(copies, alive)


def _events(ran: Nodes) -> list[RunEvent]:
    return read_events(ran.run) if ran.run is not None else []


def _begun(event: RunEvent) -> bool:
    return event.kind in (EventKind.LEASING, EventKind.GROUP)


def _over(ran: Nodes) -> bool:
    """Whether the head has ended, or every node has."""
    return ran.running[0].process.exitcode is not None


def _nap(injector: Injector, seconds: float) -> None:
    end = time.time() + seconds
    while time.time() < end:
        injector.poll()
        time.sleep(0.02)


# --- many runs, and what they come to ---


def results(file: Path) -> list[Result]:
    """Read what earlier calls have done."""
    if not file.exists():
        return []
    return [from_dict(Result, line) for line in lines_of(file)]


def spread(values: Sequence[float]) -> str:
    """Return the median, the 95th percentile and the greatest of some times."""
    if not values:
        return "- / - / -"
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{statistics.median(ordered):.2f} / {p95:.2f} / {ordered[-1]:.2f}"


def table(found: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a line per kind of fault."""
    by_kind: dict[str, list[Done]] = defaultdict(list)
    for result in found:
        for done in result.faults:
            by_kind[str(done.fault.kind)].append(done)
    lines = []
    for kind in [str(each) for each in FaultKind if str(each) in by_kind]:
        line: dict[str, Any] = {"fault": kind, "count": len(by_kind[kind])}
        for name in ("noticed", "served", "replicated", "replaced"):
            values = [getattr(done.times, name) for done in by_kind[kind]]
            known = [value for value in values if value is not None]
            line[name] = spread(known)
            line[f"{name}_count"] = len(known)
        lines.append(line)
    return lines


#: Of Student's distribution, by degrees of freedom: 95 % lie within so many standard errors.
STUDENT = {2: 4.3, 3: 3.18, 4: 2.78, 5: 2.57}


def accuracy(found: Sequence[Result], calm: Sequence[Result]) -> dict[str, Any]:
    """Compare the final accuracy with undisturbed runs of the same plan: the means, and a 95 % interval between."""
    lines = {}
    for plan in sorted({result.plan for result in found}):
        a = [r.accuracy for r in found if r.plan == plan and r.accuracy is not None]
        b = [r.accuracy for r in calm if r.plan == plan and r.accuracy is not None]
        if a and b:
            difference = statistics.mean(a) - statistics.mean(b)
            few = min(len(a), len(b))
            interval = None  # two values say nothing of how far values spread
            if few > 2:
                half = STUDENT.get(few - 1, 2.4) * sum(statistics.variance(each) / len(each) for each in (a, b)) ** 0.5
                interval = [round(100 * (difference - half), 2), round(100 * (difference + half), 2)]
            lines[plan] = {
                "disturbed": len(a), "undisturbed": len(b), "points": round(100 * difference, 2),
                "interval": interval,
                "worst_points": round(100 * (min(a) - statistics.mean(b)), 2),
            }  # fmt: skip
    return lines


def report(folder: Path, seed: int | None = None) -> None:
    """Print what was found so far, or with one seed, and write it."""
    everything = [r for r in results(folder / "runs.jsonl") if seed in (None, r.seed) or r.number < 0]
    name = "result.json" if seed is None else f"result-{seed}.json"
    found, calm = [r for r in everything if r.number >= 0], [r for r in everything if r.number < 0]
    lines, failed = table(found), [r for r in found if r.wrong]
    print(f"{'fault':14}{'count':>6}   noticed p50/p95/max     served                replicated            replaced")
    for line in lines:
        print(
            f"{line['fault']:14}{line['count']:6}   {line['noticed']:22}  {line['served']:20}  "
            f"{line['replicated']:20}  {line['replaced']}"
        )
    for result in failed:
        print(f"FAILED: --seed {result.seed} --only {result.number} ({result.plan}): {result.wrong[0][:300]}")
    total = sum(line["count"] for line in lines)
    refused = [f"{r.seed}.{r.number}: {r.refused.strip().splitlines()[-1][:160]}" for r in found if r.refused]
    hangs = sum("hangs" in each for r in found for each in r.wrong)
    print(f"{total} faults in {len(found)} runs; {hangs} hangs, {len(failed)} runs failed, {len(refused)} ended early")
    figures = {
        "runs": len(found), "faults": total, "hangs": hangs, "late_nodes": sum(len(r.late) for r in found),
        "failed": [f"{r.seed}.{r.number} {r.plan}: {r.wrong[0][:200]}" for r in failed], "ended_early": refused,
        "plans": dict(Counter(r.plan for r in found)), "on_hosts_of_their_own": sum(r.apart for r in found),
        "kinds": lines, "accuracy": accuracy(found, calm), "batches_again": sum(r.again for r in found),
    }  # fmt: skip
    write(figures, name, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="1 if it is not given; with --table, of all runs")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--calm", type=int, default=0, help="undisturbed runs of each plan, made first")
    parser.add_argument("--only", type=int, help="one run, by its number; nothing is recorded")
    parser.add_argument("--apart", type=float, default=0.3, help="share of the runs on hosts in network namespaces")
    parser.add_argument("--until", help="begin no run after this time of day, as in 15:50")
    parser.add_argument("--folder", type=Path, default=HERE)
    parser.add_argument("--keep", type=Path, help="keep the folders of runs that failed here")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that no node is left
    if options.table:
        report(options.folder, options.seed)
        return
    seed = options.seed or 1
    apart = options.apart if possible() else 0.0
    if options.apart and not apart:
        print("no network namespaces here: links are not cut")
    file = options.folder / "runs.jsonl"
    known = {(result.seed, result.number) for result in results(file)}
    numbers = (
        [options.only] if options.only is not None else [*range(-options.calm * len(PLANS), 0), *range(options.runs)]
    )
    for number in numbers:
        if options.only is None and (seed, number) in known:
            continue
        if options.until and time.strftime("%H:%M") >= options.until:
            break
        result = one(number, seed, apart, options.keep)
        if options.only is None:
            add_line(file, to_dict(result))
    if options.only is None:
        report(options.folder)


def one(number: int, seed: int, apart: float, keep: Path | None) -> Result:
    """Make one run; a negative number is an undisturbed one."""
    far = number >= 0 and random.Random(seed * 7919 + number).random() < apart
    print(f"run {number} of seed {seed}: {PLANS[number % len(PLANS)][0]}{' on hosts of their own' * far}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"survival-{seed}-{number}-", dir=keep))
    result = Survival(folder, number, seed, disturbed=number >= 0, apart=far).run()
    result = replace(result, seconds=round(result.seconds, 1))
    said = result.wrong or (result.refused and [f"ended early: {result.refused}"]) or ["as it should be"]
    print(f"  {result.codes} in {result.seconds} s, accuracy {result.accuracy}: {said[0][-1500:]}", flush=True)
    if not result.wrong:
        import shutil

        shutil.rmtree(folder)
    return result


if __name__ == "__main__":
    main()
