"""Mixed precision in float16 with a gradient scaler."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))

job = paceline.Job(
    nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
    DataLoader(data, batch_size=64, shuffle=True),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    precision="16-mixed",
    epochs=2,
)
