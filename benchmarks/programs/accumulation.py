"""Gradient accumulation over four small batches, with clipping."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

job = paceline.Job(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=16, shuffle=True),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.2),
    test=DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=16),
    accumulate_grad_batches=4,
    gradient_clip_norm=1.0,
    epochs=3,
)
