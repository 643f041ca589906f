"""An autoencoder: the target is the input, and a sample is one tensor."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

import paceline

x = torch.tensor(load_digits().data, dtype=torch.float32) / 16


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 64), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


job = paceline.Job(
    Autoencoder,
    DataLoader(x[:1500], batch_size=50, shuffle=True),  # a tensor is a dataset, too
    step=lambda model, x: nn.functional.mse_loss(model(x), x),
    optimizer=lambda p: torch.optim.Adam(p, lr=2e-3),
    test=DataLoader(x[1500:], batch_size=100),
    epochs=3,
)
