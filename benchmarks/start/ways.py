"""Ten kinds of networks by each way of computing: `python ways.py [KIND ...]`; whole commands, in processor seconds.

Each command begins with an empty cache of compiled code, which `again` finds filled. Its processor time is that of all
processes that it started, compilers included; on a quiet machine it lasts about as long, since one process trains.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl

WAYS = (("autograd", "cold"), ("fused", "cold"), ("auto", "cold"), ("auto", "again"))
SUBREAPER = 36  # of prctl: orphans become children of this process, which counts their time


class Recurrent(nn.Module):
    """The last state of a recurrent layer, classified."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.out = kind(12, 32, batch_first=True), nn.Linear(32, 5)  # type: ignore[call-arg, arg-type]

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.layer(x)[0][:, -1])
        return scores


class Words(nn.Module):
    """Words through layers of an encoder: the class of a text, or each next word if `causal`."""

    def __init__(self, words: int, length: int, layers: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.embed, self.causal = nn.Embedding(words, 32), causal
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True, norm_first=causal)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(32, words if causal else 4)
        self.register_buffer("mask", torch.triu(torch.full((length, length), -math.inf), 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(self.embed(x), mask=self.mask) if self.causal else self.layers(self.embed(x)).mean(1)
        scores: Tensor = self.head(h)
        return scores.transpose(1, 2) if self.causal else scores


def convolutions(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Two blocks of convolution, norm, ReLU and pooling, classified."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), norm(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def dense(*widths: int, between: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """Dense layers of these widths, with something between them."""
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(nn.Flatten(), *[part for layer in layers for part in (layer, between())][:-1])


def make(kind: str) -> pl.Job:
    """Return the job of a kind, which PyTorch trains for 2 to 10 s."""
    draw = torch.Generator().manual_seed(1)
    x, words = torch.rand(4096, 784, generator=draw), torch.randint(32, (2048, 16), generator=draw)
    classes = torch.randint(4, (4096,), generator=draw)
    few, images, rows = classes[:2048], x[:2048, :256].reshape(-1, 1, 16, 16), x[:2048, :240].reshape(-1, 20, 12)
    sgd, adam, y = partial(torch.optim.SGD, lr=0.01), partial(torch.optim.Adam, lr=1e-3), nn.CrossEntropyLoss()
    jobs: dict[str, tuple[Any, ...]] = {
        "tiny MLP": (partial(dense, 16, 16, 4), (x[:, :16].contiguous(), classes), y, sgd, 32, 80),
        "GRU": (partial(Recurrent, nn.GRU), (rows, few), y, adam, 32, 12),
        "conv, group norm": (partial(convolutions, partial(nn.GroupNorm, 4)), (images, few), y, sgd, 32, 15),
        "wide MLP": (partial(dense, 256, 512, 512, 10), (x[:, :256].contiguous(), classes), y, sgd, 64, 25),
        "causal LM": (partial(Words, 32, 16, 2, 0.0, True), (words[:1024], words[:1024].roll(-1, 1)), y, adam, 16, 12),
        "LSTM": (partial(Recurrent, nn.LSTM), (rows, few), y, adam, 32, 40),
        "conv, batch norm": (partial(convolutions, nn.BatchNorm2d), (images, few), y, adam, 64, 30),
        "encoder": (partial(Words, 32, 16, 1, 0.1, False), (words, few), y, adam, 32, 14),
        "autoencoder": (
            partial(dense, 64, 32, 8, 32, 64, between=nn.Tanh), (x[:, :64].contiguous(), x[:, :64].contiguous()),
            nn.MSELoss(), adam, 64, 200,
        ),
        "MLP, dropout": (
            partial(dense, 784, 128, 10, between=partial(nn.Dropout, 0.2)), (x, classes), y, adam, 128, 120
        ),
    }  # fmt: skip
    if kind not in jobs:
        raise SystemExit(f"there is no kind {kind!r}; there are {', '.join(jobs)}")
    model, data, loss, optimizer, batch, epochs = jobs[kind]
    name = kind.replace(", ", "-").replace(" ", "-")
    return pl.Job(model, data, loss=loss, optimizer=optimizer, batch_size=batch, epochs=epochs, name=name)


KINDS = (
    "tiny MLP", "GRU", "conv, group norm", "wide MLP", "causal LM", "LSTM", "conv, batch norm", "encoder",
    "autoencoder", "MLP, dropout",
)  # fmt: skip


def seconds(kind: str, way: str, cache: str) -> tuple[float, dict[str, Any]]:
    """Train by a command of its own; the processor seconds of all of it, and its summary."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as runs:
        file = Path(runs, "job.py")
        file.write_text(
            f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"from ways import make\njob = make({kind!r})\n"
        )
        command = [
            sys.executable,
            "-m",
            "paceline",
            "train",
            str(file),
            "--compute",
            way,
            "--runs",
            runs,
            "--json",
            "-q",
        ]
        done = subprocess.run(
            command, env={**os.environ, "PACELINE_CACHE": cache}, stdout=subprocess.PIPE, text=True, check=True
        )
    while True:  # what was forked ends after the command
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
        time.sleep(0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(done.stdout)


def main() -> None:
    """Print a row for each kind."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    print("| job | autograd | fused | auto | auto, again | taken | auto / best | samples/s | same bits |")
    for kind in sys.argv[1:] or KINDS:
        found = {}
        with tempfile.TemporaryDirectory() as cache:
            for way, state in WAYS:
                place = Path(cache, way)
                place.mkdir(exist_ok=True)
                found[way, state] = seconds(kind, way, str(place))
        (plain, before), (fused, _), (auto, after), (again, second) = found.values()
        same = after["parameters_sha256"] == second["parameters_sha256"]
        speeds = f"{before['samples_per_second']:,.0f}, {second['samples_per_second']:,.0f}"
        print(
            f"| {kind} | {plain:.1f} | {fused:.1f} | {auto:.1f} | {again:.1f} | {after['compute']} "
            f"| {auto / min(plain, fused):.2f} | {speeds} | {'yes' if same else 'no'} |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
