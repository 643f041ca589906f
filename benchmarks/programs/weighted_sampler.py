"""Rare classes drawn more often, by a WeightedRandomSampler."""

import torch
from sklearn.datasets import make_classification
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import paceline

x, y = make_classification(1500, 12, n_informative=6, n_classes=3, weights=[0.8, 0.15, 0.05], random_state=0)
x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
train = TensorDataset(x[:1200], y[:1200])
weights = 1.0 / torch.bincount(y[:1200]).float()
sampler = WeightedRandomSampler(weights[y[:1200]], num_samples=1200, replacement=True)

job = paceline.Job(
    nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3)),
    DataLoader(train, batch_size=60, sampler=sampler),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=3e-3),
    test=DataLoader(TensorDataset(x[1200:], y[1200:]), batch_size=100),
    metrics={"macro_f1": lambda output, target: f1_score(target, output.argmax(1), average="macro")},
    epochs=3,
)
