"""A GAN: a generator and a discriminator with an optimizer each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

real = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + 2


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


def optimizers(model):
    return [
        torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        torch.optim.Adam(model.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
    ]


def step(model, batch):
    (x,) = batch
    bce = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
    fake = model.generator(torch.randn(len(x), 4))
    loss_d = bce(model.discriminator(x), ones) + bce(model.discriminator(fake.detach()), zeros)
    loss_g = bce(model.discriminator(fake), ones)
    return loss_d, loss_g


job = paceline.Job(
    Gan, DataLoader(TensorDataset(real), batch_size=50, shuffle=True), step=step, optimizer=optimizers, epochs=2
)
