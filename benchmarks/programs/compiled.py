"""A model that went through torch.compile."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
model = torch.compile(model, backend="aot_eager")  # the default backend needs a C++ compiler

job = paceline.Job(
    model,
    DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=50, shuffle=True),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    test=DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=50),
    epochs=2,
)
