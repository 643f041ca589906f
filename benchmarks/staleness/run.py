"""What staleness costs, and whether delay compensation pays: every method on the virtual engine, with real arithmetic.

Per job, method and number of workers, twelve trainings (ten of the residual net) with a seed kept for that choose the
learning rate and the method's own number, by the error on held-out samples. Ten other seeds (five) are then reported,
in a world of equal speeds and in one of skewed speeds. Each finished figure goes to results.jsonl, so that a run that
was stopped goes on from there.

    run.py                              all of it
    run.py --methods ssp,gossip         these only, merged into result.json
    run.py --again --methods ssp        forget what results.jsonl has of them
    run.py --quick                      a minute; writes nothing
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
from harness import add_line, interval, lines_of, read, write
from study import METHODS, SEEDS, STUDIES, TUNING_SEEDS, WORLDS, Study, report, settings, synchronous, train

HERE = Path(__file__).parent
LINES = HERE / "results.jsonl"


class Task(NamedTuple):
    study: Study
    method: str
    workers: int
    seed: int = -1  # -1: tune
    rate: float = 0.0
    own: float | None = None
    worlds: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        what = "tuned" if self.seed < 0 else f"{self.rate:.6g} {self.own} {'+'.join(self.worlds)} seed {self.seed}"
        return f"{self.study.name} | {self.workers} | {self.method} | {what}"


# --- one process's work -----------------------------------------------------------------------------------------------


def alone() -> None:
    import torch

    torch.set_num_threads(1)


def work(task: Task) -> tuple[Task, Any, float]:
    begun, method = time.perf_counter(), METHODS[task.method]
    if task.seed < 0:
        found: Any = (tune_beyond if method.beyond else tune)(task)
    else:
        found = report(task.study, method, task.workers, task.rate, task.own, task.seed, task.worlds)
    return task, found, time.perf_counter() - begun


def tune(task: Task) -> list[dict[str, Any]]:
    """All trials, the best first. A coarse line of rates; then the method's own number; then finer rates around the
    best. A method without a number of its own spends those trials on more rates.
    """
    study, method, workers = task.study, METHODS[task.method], task.workers
    trials: list[dict[str, Any]] = []

    def attempt(rate: float, own: float | None) -> None:
        trials.append(train(study, method, workers, rate, own, TUNING_SEEDS[0]))
        trials.sort(key=lambda t: t["error"])  # stable: of equals, the first tried

    numbers: tuple[float | None, ...] = method.numbers(workers) or (None,)
    for rate in study.rates[1:] if len(numbers) > 1 else study.rates:
        attempt(rate, numbers[0])
    if len(numbers) > 1:
        rate = trials[0]["rate"]
        for own in numbers[1:]:
            attempt(rate, own)
    for power in study.finer if len(numbers) > 1 else (*study.finer, study.finer[-1] / 2):
        best = trials[0]
        for sign in (1, -1):
            attempt(best["rate"] * 2 ** (sign * power), best["own"])
    return trials


def tune_beyond(task: Task) -> list[dict[str, Any]]:
    """The other method's rate, 1.4 and 2 times that, each with each of the numbers: the worst of three seeds counts."""
    method, workers = METHODS[task.method], task.workers
    trials = []
    for power in (0.0, 0.5, 1.0):
        for own in method.numbers(workers):
            seeds = [train(task.study, method, workers, task.rate * 2**power, own, seed) for seed in TUNING_SEEDS]
            trials.append(max(seeds, key=lambda t: t["error"]))
    return sorted(trials, key=lambda t: t["error"])


# --- all of it --------------------------------------------------------------------------------------------------------


class Store:
    """results.jsonl: a line per finished task."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.known = file, dict[str, Any]()
        if file is not None and file.exists():
            for line in lines_of(file):
                if line["settings"] == settings(STUDIES[line["key"].split(" | ")[0]]):
                    self.known[line["key"]] = line["found"]

    def forget(self, methods: Iterable[str]) -> None:
        self.known = {key: found for key, found in self.known.items() if key.split(" | ")[2] not in methods}

    def add(self, task: Task, found: Any) -> None:
        self.known[task.key] = found
        if self.file is not None:
            add_line(self.file, {"key": task.key, "settings": settings(task.study), "found": found})


def do(tasks: list[Task], store: Store, pool: Any, what: str) -> None:
    waiting = [task for task in tasks if task.key not in store.known]
    begun = time.perf_counter()
    for done, (task, found, seconds) in enumerate(pool.imap_unordered(work, waiting), 1):
        store.add(task, found)
        left = (time.perf_counter() - begun) / done * (len(waiting) - done)
        print(f"{what} {done}/{len(waiting)}, {left / 60:.0f} min left: {task.key} ({seconds:.1f} s)", flush=True)


def measure(study: Study, methods: list[str], store: Store, pool: Any, worlds: tuple[str, ...]) -> dict[str, Any]:
    """Entries of result.json, by "world | workers | method"."""
    rows = [(m, p) for p in study.workers for m in methods if m != "sequential"]
    rows += [(m, 1) for m in methods if m == "sequential"]
    tune_at = {}
    for m, p in rows:
        for q in study.tuned_at if p > 1 else (1,):
            others = [METHODS[m].like or METHODS[m].beyond or m]
            for name in (*others, *([m] if METHODS[m].beyond else [])):
                tune_at[name, q] = Task(study, name, q)
    do([task for (name, _), task in tune_at.items() if not METHODS[name].beyond], store, pool, "tuning")
    for (name, q), task in tune_at.items():
        if other := METHODS[name].beyond:
            tune_at[name, q] = task._replace(rate=store.known[Task(study, other, q).key][0]["rate"])
    do(list(tune_at.values()), store, pool, "tuning")
    first: list[list[Task]] = []
    later: list[list[Task]] = []
    for m, p in rows:
        rate, own = chosen(study, m, p, store)
        tasks = [Task(study, m, p, seed, rate, own, worlds) for seed in SEEDS[: study.seeds]]
        if synchronous(METHODS[m]):  # both worlds at once
            first.append(tasks)
            continue
        for number, world in enumerate(w for w in worlds if w in METHODS[m].worlds):
            (later if number else first).append([task._replace(worlds=(world,)) for task in tasks])
    for rounds in (first, later):
        do([task for turn in zip(*rounds, strict=True) for task in turn], store, pool, "training")
    entries = {}
    for tasks in (*first, *later):
        task = tasks[0]
        trials = store.known.get(task._replace(seed=-1).key, [])
        for world in task.worlds:
            found = [store.known[t.key][world] for t in tasks]
            entries[f"{world} | {task.workers} | {task.method}"] = entry(task, found, trials)
    return entries


def chosen(study: Study, method: str, workers: int, store: Store) -> tuple[float, float | None]:
    """The learning rate and the method's own number. Where it was not tuned, they lie between those of the nearest
    numbers of workers where it was, in equal ratios.
    """
    like = METHODS[method].like
    best = {q: store.known[Task(study, like or method, q).key][0]
            for q in (study.tuned_at if workers > 1 else (1,))}  # fmt: skip
    low, high = (f(q for q in best if (q - workers) * sign >= 0) for f, sign in ((max, -1), (min, 1)))
    share = math.log(workers / low) / math.log(high / low) if high > low else 0.0

    def between(what: str) -> float | None:
        a, b = best[low][what], best[high][what]
        return None if a is None else float(f"{a ** (1 - share) * b**share:.4g}")

    rate = between("rate")
    assert rate is not None
    return rate, METHODS[method].numbers(workers)[0] if like else between("own")


def entry(task: Task, found: list[dict[str, Any]], trials: list[dict[str, Any]]) -> dict[str, Any]:
    wanted = 1 - task.study.target
    times = [next((t for t, error in f["curve"] if error <= wanted), None) for f in found]
    errors, seconds = ([f["curve"][-1][which] for f in found] for which in (1, 0))
    reached = [t for t in times if t is not None]
    made: dict[str, Any] = {
        "rate": task.rate, "own": task.own, "error": rounded_interval(errors), "seconds": rounded_interval(seconds),
        "reached": len(reached), "to_target": rounded_interval(reached) if len(reached) == len(times) else None,
        "staleness": round(statistics.mean(f["staleness"] for f in found), 2),
        "stalest": max(f["stalest"] for f in found),
        "errors": " ".join(f"{e:.4f}" for e in errors),
        "times_to_target": " ".join("-" if t is None else f"{t:.4g}" for t in times),
    }  # fmt: skip
    if trials:
        made["trials"] = "; ".join(f"{t['rate']:.4g} {t['own'] or ''} {t['error']:.4f}" for t in trials)
    return made


def rounded_interval(values: list[float]) -> list[float]:
    """[mean, half of its 95% interval over the seeds]; of one seed only the mean."""
    return [round(each, 5) for each in interval(values) if not math.isnan(each)]


def paired(entries: dict[str, Any]) -> dict[str, Any]:
    """Each method's error minus Downpour's, of the same seed: mean and interval. Below zero: better than Downpour."""
    found = {}
    for key, made in entries.items():
        other = entries.get(f"{key.rpartition(' | ')[0]} | downpour")
        if other and not key.endswith("| downpour"):
            pairs = zip(made["errors"].split(), other["errors"].split(), strict=True)
            found[key] = rounded_interval([float(mine) - float(theirs) for mine, theirs in pairs])
    return found


# --- told -------------------------------------------------------------------------------------------------------------


def table(study: Study, world: str, entries: dict[str, Any], cell: Callable[[str], str], what: str) -> str:
    counts = [p for p in study.workers if any(key.startswith(f"{world} | {p} |") for key in entries)]
    lines = [f"| {what} | {' | '.join(str(p) for p in counts)} |", f"|---|{'---:|' * len(counts)}"]
    for method in METHODS:
        keys = [f"{world} | {1 if method == 'sequential' else p} | {method}" for p in counts]
        if any(key in entries for key in keys):
            lines.append(f"| {method} | {' | '.join(cell(k) if k in entries else '' for k in keys)} |")
    return "\n".join(lines)


def tell(study: Study, entries: dict[str, Any]) -> str:
    def error(key: str) -> str:
        mean, half = entries[key]["error"]
        return f"{mean:.1%} ± {half:.1%}".replace("%", "")

    def seconds(key: str) -> str:
        made = entries[key]
        if made["to_target"] is None:
            return f"{made['reached']} of {len(made['errors'].split())}"
        mean, half = made["to_target"]
        return f"{mean:.2f} ± {half:.2f}"

    pairs, parts = paired(entries), []

    def against(key: str) -> str:
        if key not in pairs:
            return ""
        mean, half = pairs[key]
        sure = "**" if abs(mean) > half else ""
        return f"{sure}{mean * 100:+.2f} ± {half * 100:.2f}{sure}"

    for world in WORLDS:
        if not any(key.startswith(world) for key in entries):
            continue
        parts += [f"\n{study.name}, {world} speeds: test error in %\n", table(study, world, entries, error, "workers")]
        target = f"seconds to {study.target:.0%}"
        parts += ["\nVirtual seconds to the target\n", table(study, world, entries, seconds, target)]
        parts += ["\nError minus Downpour's, paired by seed, in points\n",
                  table(study, world, entries, against, "against downpour")]  # fmt: skip
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(m.replace(",", ";") for m in METHODS), help="comma between; "
                        "the commas of a name as semicolons")  # fmt: skip
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tables", action="store_true", help="print result.json's tables and measure nothing")
    options = parser.parse_args()
    methods = [m.strip().replace(";", ",") for m in options.methods.split(",")]
    studies, worlds = [STUDIES[name] for name in options.studies.split(",")], tuple(WORLDS)
    store = Store(None if options.quick else LINES)
    if options.quick:
        methods = ["sequential", "downpour", "dc_asgd adaptive", "local_sgd"]
        small = replace(STUDIES["mnist-dnn"], fit=6_000, epochs=1, workers=(8,), tuned_at=(8,), seeds=2, target=0.7)
        studies = [replace(small, rates=small.rates[2:5])]
    if options.again:
        store.forget(methods)
    found: dict[str, Any] = {} if options.quick else read().get("studies", {})
    if not options.tables:
        os.environ["OMP_NUM_THREADS"] = "1"
        with multiprocessing.get_context("spawn").Pool(options.processes, alone) as pool:
            for study in studies:
                before = found.get(study.name, {})
                same = before.get("settings") == settings(study)
                entries = {**(before["entries"] if same else {}), **measure(study, methods, store, pool, worlds)}
                found[study.name] = {
                    "settings": settings(study), "target": study.target, "entries": entries,
                    "error_minus_downpours": paired(entries),
                }  # fmt: skip
                if not options.quick:
                    write({"worlds": {n: repr(w) for n, w in WORLDS.items()}, "studies": found})
    for name, made in found.items():
        print(tell(studies[0] if options.quick else STUDIES[name], made["entries"]))


if __name__ == "__main__":
    main()
