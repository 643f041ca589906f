"""One SHA-256 per job: trains small jobs by many numbers of workers, shares, routes, engines, deaths and resumptions.

python benchmarks/canonical/run.py bits [--jobs mlp,cnn] [--engines virtual,local,cluster,resumed]
python benchmarks/canonical/run.py speed [--rounds 5]
python benchmarks/canonical/run.py shares [--updates 70]
python benchmarks/canonical/run.py verify
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.interfaces.api.comparing.first_step import verify_script
from paceline.runtime.runs.record import this_machine
from paceline.runtime.runs.trace import Kind

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
from harness import write
from jobs import DEATHS, JOBS, SAMPLES, Pace, wide_job
from script import DIFFERENCES

HERE = Path(__file__).parent
CHUNKS = 8
ROUTES = ("ring", "tree", "halving_doubling", "central")
ENGINES = ("virtual", "local", "cluster", "resumed")
QUOTA = 0.6  # of a core, of the worker that is not slowed
ROWS = HERE / "runs.jsonl"  # a row for each run of `bits`, which goes on where it was stopped; delete it to begin anew
RESUMED = ((2, 3), (3, 1), (4, 7), (1, 5), (5, 2))  # workers before and after
REFUSED = [
    "a node joins a running training: synchronous plans on a cluster go on with those that live; a run is resumed with "
    "more workers instead",
    "a worker dies on one machine: the run ends and is resumed",
]


def plans(engine: str, rng: random.Random) -> list[str]:
    """The plans that an engine trains each job by, besides the oracle."""
    if engine == "virtual":
        equal = [f"{routes}:workers={workers}" for routes in ROUTES for workers in (1, 2, 3, 4, 5, 7)]
        equal += [f"hierarchical:workers={workers}" for workers in (4, 6)]
        return equal + [f"{r}:sizes={shares(n, rng)}" for r in (*ROUTES, "ring", "tree") for n in (2, 3, 4, 5, 7)]
    equal = [f"ring:workers={workers}" for workers in (1, 2, 3, 4, 5, 7)]
    equal += [f"{routes}:workers={workers}" for routes in ("tree", "halving_doubling") for workers in (3, 4)]
    return equal + [f"ring:sizes={shares(workers, rng)}" for workers in (2, 3, 4, 5, 7)]


def shares(workers: int, rng: random.Random) -> str:
    return "+".join(str(rng.randint(1, 4)) for _ in range(workers))


def in_this_process(job: str, plan: str, engine: str) -> dict[str, Any]:
    run = pl.train(JOBS[job](), f"{plan},canonical={CHUNKS}", engine=engine, folder=None)
    return {"sha": run.summary()["parameters_sha256"]}


def on_a_cluster(jobs: list[str], plan: str, nodes: int, deaths: int) -> dict[str, dict[str, Any]]:
    """What the nodes have trained, by job; so many of their workers die in the first."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        head = f"127.0.0.1:{server.getsockname()[1]}"
        server.close()
        for chunks in DEATHS[:deaths]:
            (Path(folder) / f"die-{chunks}").touch()
        command = [sys.executable, str(HERE / "node.py"), f"{plan},canonical={CHUNKS}", folder, *jobs]
        shared = {**os.environ, "PACELINE_NODES": str(nodes), "PACELINE_HEAD": head}
        running = [
            subprocess.Popen(
                command,
                env={**shared, "PACELINE_RANK": str(n)},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for n in range(nodes)
        ]
        ended = [(*process.communicate(timeout=600), process.returncode) for process in running]
    told = [json.loads(out.strip().splitlines()[-1]) for out, _, code in ended if out.strip() and not code]
    error = next((err[-300:] for _, err, code in ended if code), "nothing was trained")
    found = {}
    for job in jobs:
        each = [rank[job] for rank in told if job in rank]
        died = max((result["deaths"] for result in each), default=-1)  # the first node knows of all
        same = len({result["sha"] for result in each}) == 1 and died == deaths
        found[job] = {"sha": each[0]["sha"]} if same else {"failed": f"{each or error}"}
    return found


def clusters(jobs: list[str]) -> list[tuple[list[str], str, int, int]]:
    """Return what is trained on clusters: the jobs, the plan, the nodes and the deaths."""
    mortal = [job for job in jobs if job != "fused"]  # which has no transform in which a worker dies
    cases = [([job], "ring:workers=4", 4, len(DEATHS)) for job in mortal]
    cases += [([job], "ring:workers=3", 3, 1) for job in mortal]
    plans = [("ring:workers=2", 2), ("ring:workers=3", 3), ("tree:workers=4", 4), ("halving_doubling:workers=4", 4)]
    plans += [(f"ring:sizes={shares(nodes, random.Random(nodes))}", nodes) for nodes in (2, 3, 4)]
    return [*cases, *((jobs, plan, nodes, 0) for plan, nodes in plans)]


def resumed(job: str, workers: int, after: int) -> dict[str, Any]:
    """Train until a worker dies, and go on with another number of workers."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"die-{DEATHS[0]}").touch()
        plan, runs = f"ring:workers={workers},canonical={CHUNKS}", Path(folder) / "runs"
        try:
            pl.train(JOBS[job](folder), plan, checkpoint_every=1, folder=runs)
            return {"failed": "no worker has died"}
        except pl.RunFailed:
            (run,) = runs.iterdir()
            return {"sha": pl.train(resume=run, workers=after).summary()["parameters_sha256"]}


def bits(jobs: list[str], engines: list[str]) -> bool:
    """Train what `runs.jsonl` has no row of yet, and write what all rows say."""
    known, commit = _rows(), _commit()

    def trained(job: str, engine: str, plan: str, train: Callable[[], dict[str, Any]]) -> None:
        if (job, engine, plan) in known:
            return
        try:
            result = train()
        except pl.RunStopped:
            raise  # by a signal: the command is stopped, and has this run before it
        except Exception as error:  # a failed run is a row, and no end of the others
            result = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        with ROWS.open("a") as file:
            made_by = {"processor": this_machine().processor, "commit": commit}
            row = {**made_by, "job": job, "engine": engine, "plan": plan, **result}
            file.write(json.dumps(row) + "\n")

    for job in jobs:
        rng = random.Random(job)
        trained(job, "oracle", "sequential", partial(in_this_process, job, "sequential:threads=1", "virtual"))
        for engine in ("virtual", "local"):
            for plan in dict.fromkeys(plans(engine, rng)) if engine in engines else ():
                trained(job, engine, plan, partial(in_this_process, job, plan, engine))
        for workers, after in RESUMED if "resumed" in engines and job != "fused" else ():
            trained(job, "resumed", f"{workers} then {after}", partial(resumed, job, workers, after))
    for names, plan, nodes, deaths in clusters(jobs) if "cluster" in engines else ():
        told = f"{plan}, {deaths} deaths"
        missing = [job for job in names if (job, "cluster", told) not in known]
        results = on_a_cluster(missing, plan, nodes, deaths) if missing else {}
        for job, result in results.items():
            trained(job, "cluster", told, partial(dict, result))
    return _summary()


def _commit() -> str:
    """Return the last commit that changed the package, with a plus if the package has changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=True).stdout

    source = ":/src"
    return git("log", "-1", "--format=%h", "--", source).strip() + "+" * bool(git("status", "--porcelain", source))


def _rows() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the rows of this processor: another one has other bits."""
    rows = map(json.loads, ROWS.read_text().splitlines() if ROWS.exists() else [])
    here = this_machine().processor
    return {(row["job"], row["engine"], row["plan"]): row for row in rows if row["processor"] == here}


def _summary() -> bool:
    """Write how many runs there are, and which results each job has."""
    rows, results = [*_rows().values()], defaultdict[str, Counter[str]](Counter)
    for row in rows:
        results[row["job"]][row.get("sha", "failed")] += 1
    failed = [f"{row['job']}, {row['engine']}, {row['plan']}: {row['failed']}" for row in rows if "failed" in row]
    same = not failed and all(len(each) == 1 for each in results.values())
    figures = {"one_result_per_job": same, "runs": len(rows), "by_engine": dict(Counter(r["engine"] for r in rows))}
    figures["by_commit"] = dict(Counter(row["commit"] for row in rows))
    figures |= {"refused": REFUSED, "failed": failed, "bits": {job: dict(each) for job, each in results.items()}}
    write(figures, "result.json")
    print(f"{len(rows)} runs, {'one result per job' if same else 'RESULTS DIFFER'}")
    print("\n".join(failed))
    return same


def verified() -> bool:
    """Verify a script of DistributedDataParallel with each of its differences; whether all are named first."""
    rows = []
    for name, (stage, tensor, what) in DIFFERENCES.items():
        verification = verify_script(f"{HERE / 'script.py'} {name}", seconds=1000)
        first = next(iter(verification.differences), None)
        said = (first.stage, first.name) if first else ("", "")
        rows.append({"difference": what, "named": said == (stage, tensor), "first": first and asdict(first)})
        print(rows[-1], flush=True)
    write({"rows": rows}, "verify.json")
    return all(row["named"] for row in rows)


def moved(updates: int) -> None:
    """Samples per second of two workers, the second with less of a core: with equal, fixed, and measured shares."""
    rows = []
    with quotas() as folder:
        for times, fixed in ((2.0, "2+1"), (5.0, "5+1")):
            row: dict[str, Any] = {"slower": times}
            for name, sizes in (("equal", "1+1"), ("fixed", fixed), ("measured", "measured")):
                plan = f"ring:sizes={sizes},canonical={CHUNKS}"
                paced = wide_job(updates, Pace(folder, (QUOTA, QUOTA / times)))
                run = pl.train(paced, plan, folder=None, max_updates=updates)
                same = pl.train(wide_job(updates), plan, folder=None, max_updates=updates)
                ends = run.trace.of_kind(Kind.APPLY)
                ends = ends[ends["worker"] == 0]["end"]
                row[f"{name} bits"] = run.summary()["parameters_sha256"] == same.summary()["parameters_sha256"]
                row[name] = round(SAMPLES * 1e9 * (len(ends) - 11) / float(ends[-1] - ends[10]), 1)
            row["of_fixed"] = round(row["measured"] / row["fixed"], 3)
            rows.append(row)
            print(row, flush=True)
    write({"rows": rows}, "shares.json")


@contextlib.contextmanager
def quotas() -> Iterator[Path]:
    """Make a group of processes whose subgroups have quotas of the CPU; this needs cgroups v1, and root."""
    folder = Path(f"/sys/fs/cgroup/cpu/canonical-{os.getpid()}")
    folder.mkdir()
    try:
        yield folder
    finally:
        for group in (*folder.iterdir(), folder):
            if group.is_dir():
                group.rmdir()


def network(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 10))


def speed(rounds: int, updates: int) -> None:
    """Seconds of CPU of an update, of two workers together, in alternating rounds."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4000, 784, generator=generator), torch.randint(10, (4000,), generator=generator)
    figures = []
    for hidden, size, fewer in ((64, "55 thousand", 1), (680, "1 million", 8), (2950, "11 million", 80)):
        for compute in ("autograd", "fused"):
            job = pl.Job(
                model=partial(network, hidden), data=(x, y), loss=nn.CrossEntropyLoss(), batch_size=200, epochs=1000,
                optimizer=partial(torch.optim.SGD, lr=0.01), compute=compute, device="cpu",
            )  # fmt: skip
            seconds: dict[str, list[float]] = defaultdict(list)
            count = max(1, updates // fewer)
            for _ in range(rounds):
                for plan in ("ring", "ring:canonical=2", "ring:canonical=8"):
                    seconds[plan].append(_seconds(job, plan, count, min(50, count)))
            base = seconds["ring"]
            for plan, each in seconds.items():
                ratios = sorted(a / b if b else math.nan for a, b in zip(base, each, strict=True))
                row = {
                    "parameters": size,
                    "compute": compute,
                    "plan": plan,
                    "milliseconds": 1e3 * statistics.median(each),
                }
                row |= {"of_ring": statistics.median(ratios), "range": [ratios[0], ratios[-1]]}
                figures.append(row)
                print(row, flush=True)
    write({"rows": figures}, "speed.json")


def _seconds(job: pl.Job, plan: str, updates: int, before: int) -> float:
    """Seconds of CPU of an update, of both workers: the slope between a training and one of so many updates more."""

    def used(count: int) -> float:
        start = _of_workers()
        pl.train(job, plan, workers=2, folder=None, max_updates=count)
        return _of_workers() - start

    return (used(before + updates) - used(before)) / updates


def _of_workers() -> float:
    """Seconds of CPU of all workers that have ended: children of the forkserver."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is None:
        return 0.0
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bits", "speed", "shares", "verify"))
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, help="default: 400 of speed, 70 of shares")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.what == "speed":
        speed(given.rounds, given.updates or 400)
    elif given.what == "shares":
        if given.updates is not None and given.updates < 20:
            parser.error("--updates: the first ten of shares are not counted; give 20 or more")
        moved(given.updates or 70)
    elif given.what == "verify":
        sys.exit(not verified())
    else:
        sys.exit(not bits(given.jobs.split(","), given.engines.split(",")))
