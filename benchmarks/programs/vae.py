"""A variational autoencoder: the step draws noise, and the batch is a list of one tensor."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

x = torch.tensor(load_digits().data, dtype=torch.float32) / 16


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Linear(64, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x):
        hidden = torch.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


def step(model, batch):
    (x,) = batch
    output, mean, log_variance = model(x)
    reconstruction = nn.functional.binary_cross_entropy_with_logits(output, x, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
    return (reconstruction + divergence) / len(x)


job = paceline.Job(
    Vae(),
    DataLoader(TensorDataset(x), batch_size=64, shuffle=True),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-3),
    epochs=3,
)
