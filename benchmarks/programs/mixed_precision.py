"""Mixed precision in bfloat16, as on a recent GPU."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
train, test = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(1))

job = paceline.Job(
    nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10)),
    DataLoader(train, batch_size=64, shuffle=True),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.AdamW(p, lr=2e-3),
    test=DataLoader(test, batch_size=64),
    precision="bf16-mixed",
    epochs=2,
)
