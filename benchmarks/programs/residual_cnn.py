"""A residual network as timm has them: batch norm, stochastic depth, no weight decay on norms, warm-up and cosine."""

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)


class Block(nn.Module):
    def __init__(self, channels, drop):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.drop = drop

    def forward(self, x):
        out = self.body(x)
        if self.training:
            keep = torch.rand(len(x), 1, 1, 1, device=x.device) >= self.drop
            out = out * keep / (1 - self.drop)
        return torch.relu(x + out)


def model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), Block(16, 0.0), Block(16, 0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip


def optimizer(model):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=5e-3)


def schedule(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 10) * (0.5 + 0.5 * math.cos(math.pi * min(step / 50, 1)))
    )


job = paceline.Job(
    model,
    DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=64, shuffle=True, drop_last=True),
    nn.CrossEntropyLoss(label_smoothing=0.1),
    optimizer=optimizer,
    lr_scheduler=schedule,
    test=TensorDataset(x[1400:], y[1400:]),
    epochs=2,
)
