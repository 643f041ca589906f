"""A hundred asynchronous runs of three real processes, each replayed in one process to the same bits."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.training.jobs.built_ins import TinyTransformer, cifar_resnet, digits_net, mnist_dnn

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dnn": (mnist_dnn, (28, 28)),
    "cnn": (digits_net, (1, 16, 16)),
    "resnet": (cifar_resnet, (3, 16, 16)),
    "transformer": (TinyTransformer, (16, 8)),
}
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.02, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--compute", choices=["autograd", "fused"], default="autograd")
    options = parser.parse_args()
    fused = options.compute == "fused"
    models = [name for name in MODELS if not (fused and name == "resnet")]
    warnings.simplefilter("ignore")
    same, stale, begun = 0, [], time.monotonic()
    for number in range(options.runs):
        name = models[number % len(models)]
        optimizer = list(OPTIMIZERS)[number // len(models) % 4]
        model, shape = MODELS[name]
        generator = torch.Generator().manual_seed(number)
        data = (torch.randn(900, *shape, generator=generator), torch.randint(10, (900,), generator=generator))
        job = pl.Job(
            model=model, data=data, loss=nn.CrossEntropyLoss(), optimizer=OPTIMIZERS[optimizer],
            batch_size=25, epochs=6 if fused else 2, seed=number, compute=options.compute,
        )  # fmt: skip
        plan = "ssp:workers=3" if fused and number % 2 else f"downpour:workers=3,shards={1 + number % 3}"
        run = pl.train(job, plan, folder=None)
        stale.append(run.summary()["staleness"]["mean"])
        same += bool(pl.replay(run).matches)
        print(f"{number + 1}: {name} {optimizer} staleness {stale[-1]:.2f}; the same bits {same}", flush=True)
    write(
        {
            "runs": options.runs,
            "same_bits": same,
            "mean_staleness": round(sum(stale) / len(stale), 2),
            "minutes": round((time.monotonic() - begun) / 60, 1),
        },
        "result_fused.json" if fused else "result.json",
    )


if __name__ == "__main__":
    main()
