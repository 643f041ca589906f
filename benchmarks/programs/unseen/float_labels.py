"""Labels that pandas made floats of, given to a cross entropy."""

import numpy as np
import torch
from torch import nn

import paceline

draw = np.random.default_rng(0)
x, y = draw.normal(size=(300, 5)), draw.integers(0, 3, 300).astype(float)

job = paceline.Job(
    lambda: nn.Linear(5, 3),
    (x, y),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    batch_size=30,
)
