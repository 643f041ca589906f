"""A classifier of digits from tensors in memory."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    (x[:1400], y[:1400]),
    nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    test=(x[1400:], y[1400:]),
    batch_size=50,
    epochs=2,
)
