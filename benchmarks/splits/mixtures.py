"""Experts against a dense net of equal operations: letters of English text, on two processes, by updates and by time.

The text is the language reference that Python carries (`pydoc_data.topics`). A net sees 16 letters and tells the next;
in the middle is either one feed-forward layer, or eight of the same size of which each sample takes one (Switch).
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from functools import partial
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from harness import rows_of
from torch import Tensor, nn
from torch.nn import functional as F

import paceline
from paceline.runtime.runs.run import Run
from paceline.training.jobs.modules import Experts, balance_loss

RUNS = Path(tempfile.gettempdir()) / "paceline-splits"
SEEN, WIDTH, HIDDEN, EXPERTS, BATCH, SAMPLES = 16, 192, 768, 8, 512, 102_400
PLANS = {"dense": ("sequential", "ring:workers=2"), "experts": ("sequential", "experts:workers=2")}
EPOCHS, SEEDS = 4, 3


class Letters(nn.Module):
    """Tells the next letter, and returns how likely each expert was."""

    def __init__(self, letters: int, experts: int) -> None:
        super().__init__()
        self.letters, self.enter = nn.Embedding(letters, 16), nn.Linear(16 * SEEN, WIDTH)
        self.router = nn.Linear(WIDTH, experts) if experts else None
        self.middle: nn.Module = (
            Experts(WIDTH, HIDDEN, experts, groups=4, capacity_factor=1.25)
            if experts
            else nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = F.relu(self.enter(self.letters(x).flatten(1)))
        p = None if self.router is None else self.router(self.norm(x)).softmax(-1)
        made = self.middle(self.norm(x)) if p is None else self.middle(self.norm(x), p)
        return self.head(x + made), p


def step(model: nn.Module, batch: Any) -> Tensor:
    scores, p = model(batch[0])
    loss = F.cross_entropy(scores, batch[1])
    return loss if p is None else loss + 0.01 * balance_loss(p)


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return model(batch[0])[0], batch[1]


def text() -> tuple[Tensor, int]:
    whole = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    letters = sorted(set(whole))
    known = {letter: number for number, letter in enumerate(letters)}
    return torch.tensor([known[letter] for letter in whole]), len(letters)


def job(experts: int, seed: int) -> paceline.Job:
    stream, letters = text()
    places = torch.randperm(len(stream) - SEEN, generator=torch.Generator().manual_seed(0))[: SAMPLES + 8192]
    x, y = stream.unfold(0, SEEN, 1)[places].contiguous(), stream[places + SEEN]
    return paceline.Job(
        partial(Letters, letters, experts), (x[:SAMPLES], y[:SAMPLES]), step=step, batch_size=BATCH, epochs=EPOCHS,
        test=(x[SAMPLES:], y[SAMPLES:]), evaluate=evaluate, metrics={"loss": F.cross_entropy}, evaluate_every=50,
        optimizer=partial(torch.optim.Adam, lr=1e-3), seed=seed, device="cpu",
    )  # fmt: skip


def curve(run: Run) -> list[tuple[int, float, float]]:
    """Return (updates, seconds, loss on unseen letters) of every evaluation."""
    return [(each["updates"], each["seconds"], each["loss"]) for each in run.history]


def trained(key: list[Any]) -> dict[str, Any]:
    seed, net, plan = key
    run = paceline.train(job(EXPERTS if net == "experts" else 0, seed), plan, folder=RUNS)
    print(key, curve(run)[-1], flush=True)
    return {"curve": curve(run)}


def first(found: list[tuple[int, float, float]], loss: float, what: int) -> float:
    """Return the updates (0) or seconds (1) until the loss was first as low as this."""
    return next((row[what] for row in found if row[2] <= loss), float("inf"))


def measure_mixtures() -> dict[str, Any]:
    keys = [[seed, net, plan] for seed in range(SEEDS) for net, plans in PLANS.items() for plan in plans]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = rows_of("rows_mixtures.jsonl", keys, trained)
    found: dict[str, list[Any]] = {}
    for row in rows:
        _, net, plan = row["key"]
        found.setdefault(f"{net}, {plan}", []).append(row["curve"])
    return {"experts": EXPERTS, "seeds": SEEDS, **compared(found)}


def compared(found: dict[str, list[Any]]) -> dict[str, Any]:
    """Return what each net has come to after as much time as the dense net of the fastest plan has taken."""
    names = list(found)
    ends = {name: statistics.median(each[-1][1] for each in found[name]) for name in names}
    dense = min((name for name in names if name.startswith("dense")), key=lambda name: ends[name])
    mixed = min((name for name in names if name.startswith("experts")), key=lambda name: ends[name])
    rows = []
    for plain, mixture in zip(found[dense], found[mixed], strict=True):
        end, loss = plain[-1][1], min(row[2] for row in plain)
        rows.append({
            "loss of the dense net": loss, "of experts at the same updates": min(row[2] for row in mixture),
            "of experts at the same seconds": min((r[2] for r in mixture if r[1] <= end), default=float("inf")),
            "updates to the dense net's loss": first(mixture, loss, 0) / first(plain, loss, 0),
            "seconds to the dense net's loss": first(mixture, loss, 1) / first(plain, loss, 1),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return {"seconds in all": ends, "dense": dense, "mixture": mixed, "rounds": rows}
