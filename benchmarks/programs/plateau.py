"""A learning rate that is reduced when the loss no longer falls."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

x, y = load_diabetes(return_X_y=True)
x, y = torch.tensor(x, dtype=torch.float32) * 20, torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)

job = paceline.Job(
    nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0)),
    DataLoader(TensorDataset(x[:342], y[:342]), batch_size=19, shuffle=True),
    nn.MSELoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
    test=DataLoader(TensorDataset(x[342:], y[342:]), batch_size=100),
    epochs=6,
)
