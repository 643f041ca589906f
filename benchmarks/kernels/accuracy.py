"""Three epochs of mnist-cnn over five seeds, fused and by PyTorch: how accurate are they, and how long did it take?"""

from __future__ import annotations

import copy
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import seconds, write

from paceline.kernels import fuse
from paceline.training.jobs.built_ins import mnist, mnist_cnn

SGD = partial(torch.optim.SGD, lr=0.5)
BATCH, EPOCHS, SEEDS = 64, 3, 5


def by_pytorch(model: nn.Module, x: Tensor, y: Tensor, orders: list[Tensor]) -> None:
    optimizer, loss = SGD(model.parameters()), nn.CrossEntropyLoss()
    for order in orders:
        shuffled, labels = x[order], y[order]
        for one, label in zip(shuffled.split(BATCH), labels.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss(model(one), label).backward()
            optimizer.step()


def fused(model: nn.Module, x: Tensor, y: Tensor, orders: list[Tensor]) -> None:
    trainer = fuse(model, nn.CrossEntropyLoss(), SGD, BATCH)
    for order in orders:
        trainer.train_epoch(x, y, order)


def main() -> None:
    (x, y), (xt, yt) = mnist(None)
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {name: {"accuracy": [], "seconds": []} for name in ("fused", "PyTorch")}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = mnist_cnn()
        orders = [torch.randperm(len(x)) for _ in range(EPOCHS)]
        for name, train in (("fused", fused), ("PyTorch", by_pytorch)):
            mine = copy.deepcopy(model)
            found[name]["seconds"].append(seconds(partial(train, mine, x, y, orders)))
            with torch.no_grad():
                found[name]["accuracy"].append(float((mine(xt).argmax(1) == yt).float().mean()))
            print(
                f"seed {seed}: {name} {found[name]['accuracy'][-1]:.4f}, {found[name]['seconds'][-1]:.2f} s", flush=True
            )
    for name, figures in found.items():
        accuracies = figures["accuracy"]
        print(f"{name}: {statistics.mean(accuracies):.4f} +- {statistics.stdev(accuracies):.4f}")
    write({"samples": len(x), "epochs": EPOCHS, **found}, "accuracy.json")


if __name__ == "__main__":
    main()
