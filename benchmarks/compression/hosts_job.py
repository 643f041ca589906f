"""784-w-w-10 on Fashion-MNIST; a training pass over 100 samples takes at least PASS milliseconds.

Four hosts share the cores of one machine here. Each sleeps through its pass and then computes, so hosts hardly compute
at one another's expense as long as the arithmetic of all is well below PASS.
"""

import os
import time
from functools import partial

import torch
from torch import Tensor, nn

import paceline
from paceline.training.jobs.built_ins import built_in

#: The width of a network with so many million parameters.
WIDTHS = {"1": 718, "11": 2960}
PASS = float(os.environ.get("PASS", "40")) / 1000
TESTED = 2000  # images of the test set: an evaluation has to be cheap beside the training


class Network(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(PASS * len(x) / 100)  # a worker with a part of a batch has a part of its work
        result: Tensor = self.body(x)
        return result


mnist = built_in("mnist-dnn")
job = paceline.Job(
    model=partial(Network, WIDTHS[os.environ.get("SIZE", "1")]),
    data=mnist.data, test=tuple(part[:TESTED] for part in mnist.test), loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.SGD, lr=float(os.environ.get("RATE", "0.1"))),
    batch_size=int(os.environ.get("BATCH", "100")), epochs=10**6, evaluate_every=int(os.environ.get("EVERY", "20")),
)  # fmt: skip
