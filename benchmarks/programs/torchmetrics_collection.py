"""Metrics of torchmetrics, as a collection."""

import torch
import torchmetrics
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import paceline

x, y = load_wine(return_X_y=True)
x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
train, test = random_split(TensorDataset(x, torch.tensor(y)), [120, 58], torch.Generator().manual_seed(0))

job = paceline.Job(
    nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3)),
    DataLoader(train, batch_size=12, shuffle=True),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    test=DataLoader(test, batch_size=16),
    metrics=torchmetrics.MetricCollection(
        [
            torchmetrics.classification.MulticlassAccuracy(3, average="micro"),
            torchmetrics.classification.MulticlassF1Score(3, average="macro"),
            torchmetrics.classification.MulticlassAUROC(3),
        ]
    ),
    epochs=4,
)
