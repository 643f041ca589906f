"""Every recipe, 2 to 8 workers, six kinds of models, three optimizers: parameters after 20 updates, of one process.

Worlds are computed in one process by the virtual engine, in float64; figures go to a file as they come, so that a run
that was interrupted goes on.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from harness import rows_of
from paceline.testing.conformance import difference
from paceline.testing.jobs import JOBS, OPTIMIZERS, SAMPLES
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import PlanError
from paceline.interfaces.api.train import train
from paceline.plans.plan import Plan, make
from paceline.training.jobs.job import Job
from paceline.training.jobs.modules import Experts, balance_loss

UPDATES = 20
WORLDS = range(2, 9)
INSIDE = (
    "tensor", "redundant:small=20", "one_weird_trick", "experts", "zero:stage=1", "zero:stage=2", "zero:stage=3",
    "per_layer:ways=*:columns+*:heads+*:channels", "per_layer:ways=*:rows+*:vocabulary+*:samples",
)  # fmt: skip
AXES = ((2, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 2), (1, 2, 3), (3, 1, 2), (1, 2, 4), (4, 1, 2))


class TiedTransformer(nn.Module):
    """Words whose embedding is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.scores = nn.Linear(8, 13, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.scores(self.body(self.words(x)))
        return found.transpose(1, 2)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.router, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.experts = Experts(8, 12, experts=8, groups=8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.enter(x))
        p = self.router(x).softmax(-1)
        return self.head((x + self.experts(x, p)).mean(1)), p


def balanced(model: nn.Module, batch: Any) -> Tensor:
    scores, p = model(batch[0])
    return F.cross_entropy(scores, batch[1]) + 0.01 * balance_loss(p)


def kinds() -> dict[str, Job]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(13, (SAMPLES, 4), generator=generator)
    tokens = torch.randn(SAMPLES, 4, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (SAMPLES,), generator=generator)
    mlp = JOBS["mlp"]()
    found = {
        "MLP, dropout": mlp,
        "residual, batch norm": JOBS["residual"](),
        "transformer, tied": mlp.with_(model=lambda: TiedTransformer().double(), data=(words, words.roll(1, 1))),
        "LSTM": JOBS["lstm"](),
        "auto-encoder, two heads": JOBS["tied"](),
        "experts": mlp.with_(model=lambda: Mixture().double(), data=(tokens, labels), loss=None, step=balanced),
    }
    return {name: job.with_(batch_size=16, epochs=6) for name, job in found.items()}


def plans() -> Iterator[str]:
    for workers in WORLDS:
        for text in INSIDE:
            yield f"{text}{',' if ':' in text else ':'}workers={workers}"
    yield from ("cannon:workers=4", "cannon:workers=9", "cannon:workers=8,data=2", "tensor:workers=8,data=4")
    for data, layers, inside in AXES:
        axes = f"workers={data * layers * inside},data={data},layers={layers},inside={inside}"
        yield f"mesh:{axes}"
        yield f"distbelief:{axes},mode=synchronous"


def measured(job: Job, plan: str, oracle: Any) -> dict[str, Any]:
    parsed = Plan.parse(plan)
    try:
        run = train(job, parsed, engine="virtual", folder=None, max_updates=UPDATES)
    except PlanError as refusal:
        return {"refused": str(refusal)[:120]}
    return {"difference": difference(oracle(parsed.parts).model, run.model)}


def measure_equal() -> dict[str, Any]:
    jobs, oracles = dict[tuple[str, str], Job](), dict[tuple[str, str], Any]()
    for kind, plain in kinds().items():
        for optimizer in ("momentum", "adam", "adagrad"):
            job = jobs[kind, optimizer] = plain.with_(optimizer=OPTIMIZERS[optimizer])
            oracles[kind, optimizer] = cache(partial(_oracle, job))
    keys = [[*which, plan] for plan in dict.fromkeys(plans()) for which in jobs]
    random.Random(0).shuffle(keys)  # so that what has been measured when a run is interrupted is a sample

    def measure(key: list[str]) -> dict[str, Any]:
        kind, optimizer, plan = key
        return measured(jobs[kind, optimizer], plan, oracles[kind, optimizer])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return table(rows_of("rows_equal.jsonl", keys, measure))


def _oracle(job: Job, chunks: int) -> Any:
    return train(job, make("sequential", chunks=chunks), engine="virtual", folder=None, max_updates=UPDATES)


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst difference of every recipe and kind, and what was refused."""
    worst: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for row in rows:
        kind, _, plan = row["key"]
        recipe = plan.partition("workers=")[0].rstrip(":,")
        if "refused" in row:
            refused[f"{plan} on {kind}"] = row["refused"]
            continue
        mine = worst.setdefault(recipe, {})
        mine[kind] = max(mine.get(kind, 0.0), row["difference"])
    for recipe, mine in worst.items():
        print(recipe, {kind: f"{apart:.0e}" for kind, apart in mine.items()}, flush=True)
    equal = sum("difference" in row and row["difference"] <= 1e-9 for row in rows)
    return {"runs": len(rows), "equal to 1e-9": equal, "worst difference": worst, "refused": refused}
