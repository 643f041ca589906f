"""What codecs cost in accuracy: `python benchmarks/compression/quality.py --seeds 10 --minutes 10`

Four workers under `ring` on the virtual engine, whose arithmetic is that of processes bit for bit. Every codec gets the
learning rate that was best of RATES, as factors of the job's own, over the tuning seeds; then it is compared with dense
over other seeds, seed by seed. Each training is a line of quality.jsonl as soon as it is done, so the command continues
where it was stopped; seeds are done one after the other, so that all codecs have as many.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

import paceline
from paceline.algorithms.codecs.quantized import OneBit
from paceline.algorithms.codecs.sparse import TopK
from paceline.plans.plan import Plan
from paceline.training.jobs.built_ins import built_in
from paceline.training.jobs.job import Job

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import add_line, interval, lines_of, table

FILE = Path(__file__).parent / "quality.jsonl"
CODECS = (
    "dense", "half", "bfloat16", "int8", "qsgd:4", "qsgd:2", "ternary", "onebit", "onebit without feedback",
    "threshold:0.001", "threshold:0.01", "topk:0.01", "topk:0.01 without feedback", "topk:0.001", "randomk:0.05",
    "powersgd:2", "powersgd:1",
)  # fmt: skip
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)  # times the job's own
TUNING = (1000,)  # seeds by which rates are chosen; none of them is reported


@dataclass(frozen=True)
class ForgetfulOneBit(OneBit):
    """One bit without error feedback, for the paper's claim that it needs it."""

    feedback: ClassVar = False


@dataclass(frozen=True)
class ForgetfulTopK(TopK):
    """Top-k without error feedback."""

    feedback: ClassVar = False


#: Codecs that no plan has a name for.
OWN = {"onebit without feedback": ForgetfulOneBit(), "topk:0.01 without feedback": ForgetfulTopK(0.01)}


class Bag(nn.Module):
    """The mean of a sentence's word vectors, and a layer on it: most parameters are the table's."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(300, 16), nn.Linear(16, 10)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.table(words).mean(1))
        return scores


def sentences() -> Job:
    """Return a job with an embedding: words with a hidden score for each class, the best class of their sum."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(300, 10, generator=generator)
    words = torch.randint(300, (12_000, 6), generator=generator)
    labels = scores[words].sum(1).argmax(1)
    return Job(
        model=Bag, data=(words[:10_000], labels[:10_000]), test=(words[10_000:], labels[10_000:]),
        loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.Adam, lr=2e-2), batch_size=100, epochs=10,
        name="embedding",
    )  # fmt: skip


#: Each job, and its updates.
JOBS: dict[str, tuple[Callable[[], Job], int]] = {
    "mnist-dnn": (lambda: built_in("mnist-dnn"), 600),
    "embedding": (sentences, 400),
    "tiny-transformer": (lambda: built_in("tiny-transformer"), 200),
    "cifar-resnet": (lambda: built_in("cifar-resnet"), 100),
}


def plan_of(codec: str) -> Plan:
    if codec in OWN:
        return replace(Plan.parse("ring:workers=4"), codec=OWN[codec])
    return Plan.parse(f"ring:workers=4,codec={codec}")


def trained(name: str, codec: str, rate: float, seed: int) -> dict[str, Any]:
    """Train once; return the line of the result file."""
    make, updates = JOBS[name]
    job = make()
    assert isinstance(job.optimizer, partial)
    optimizer = partial(job.optimizer.func, **{**job.optimizer.keywords, "lr": rate * job.optimizer.keywords["lr"]})
    job = job.with_(seed=seed, evaluate_every=None, optimizer=optimizer, epochs=10**4)
    run = paceline.train(job, plan_of(codec), engine="virtual", folder=None, max_updates=updates)
    summary = run.summary()
    return {
        "job": name, "codec": codec, "rate": rate, "seed": seed, "updates": updates,
        "accuracy": summary["test_accuracy"], "bytes": summary["bytes_sent"] / updates / 4,
    }  # fmt: skip


def read() -> list[dict[str, Any]]:
    """Return what was trained so far, of these numbers of updates."""
    return [line for line in lines_of(FILE) if line["updates"] == JOBS[line["job"]][1]]


def best_rate(found: list[dict[str, Any]], job: str, codec: str) -> float:
    """Return the rate with the best accuracy over the tuning seeds; of equal ones the nearest to the job's own."""

    def accuracy(rate: float) -> float:
        return statistics.fmean(
            each["accuracy"] for each in found
            if (each["job"], each["codec"], each["rate"]) == (job, codec, rate) and each["seed"] in TUNING
        )  # fmt: skip

    return max(RATES, key=lambda rate: (accuracy(rate), -abs(math.log(rate))))


def due(names: list[str], codecs: list[str], seeds: int) -> Iterator[tuple[str, str, float | None, int]]:
    """Yield what is to be trained, in order; a rate of None is the best one."""
    for seed in TUNING:
        for name in names:
            for codec in codecs:
                yield from ((name, codec, rate, seed) for rate in RATES)
    for seed in range(seeds):
        for name in names:
            yield from ((name, codec, None, seed) for codec in codecs)


def page(found: list[dict[str, Any]], job: str, codecs: list[str]) -> str:
    """Return the README's table of a job: the seeds that both a codec and dense have."""
    rows, runs = [], {}
    for codec in codecs:
        case = job, codec, best_rate(found, job, codec)
        mine = [e for e in found if (e["job"], e["codec"], e["rate"]) == case and e["seed"] not in TUNING]
        runs[codec] = {e["seed"]: e for e in mine}
    for codec, mine in runs.items():
        seeds = sorted(mine.keys() & runs["dense"].keys())
        if not seeds:
            continue
        gaps = [100 * (mine[s]["accuracy"] - runs["dense"][s]["accuracy"]) for s in seeds]
        gap, wide = interval(gaps)
        accuracy = statistics.fmean(mine[s]["accuracy"] for s in seeds)
        size, rate = statistics.fmean(mine[s]["bytes"] for s in seeds), mine[seeds[0]]["rate"]
        said = f"{len(gaps)} seeds" if codec == "dense" else f"{gap:+.2f} ± {wide:.2f} points"
        rows.append((f"`{codec}`", f"{size:,.0f}", f"{rate:g}", f"{accuracy:.2%}", said))
    header = ("codec", "bytes an update:", "rate:", "accuracy:", "against dense, seed by seed (95%):")
    return f"`{job}`, {JOBS[job][1]} updates\n\n{table(header, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no training after this time")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--codecs", default=",".join(CODECS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    names, codecs, end = given.jobs.split(","), given.codecs.split(","), time.monotonic() + 60 * given.minutes
    found = read()
    done = {(each["job"], each["codec"], each["rate"], each["seed"]) for each in found}
    for name, codec, wanted, seed in due(names, codecs, given.seeds):
        rate = best_rate(found, name, codec) if wanted is None else wanted
        if (name, codec, rate, seed) in done:
            continue
        if time.monotonic() > end:
            break
        found.append(trained(name, codec, rate, seed))
        add_line(FILE, found[-1])
    print("\n".join(page(found, name, codecs) for name in names))


if __name__ == "__main__":
    main()
