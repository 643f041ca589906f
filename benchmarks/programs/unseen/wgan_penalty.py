"""A Wasserstein GAN with a gradient penalty: a second backward pass inside of the loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

real = torch.randn(800, 2, generator=torch.Generator().manual_seed(0)) * 0.3 + torch.tensor([1.0, -1.0])


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))


def critic_loss(model, batch):
    (x,) = batch
    with torch.no_grad():
        fake = model.generator(torch.randn(len(x), 8))
    share = torch.rand(len(x), 1)
    between = (share * x + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(model.critic(between).sum(), between, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    return model.critic(fake).mean() - model.critic(x).mean() + 10 * penalty


job = paceline.Job(
    Gan,
    DataLoader(TensorDataset(real), batch_size=50, shuffle=True),
    step=critic_loss,
    optimizer=lambda model: torch.optim.Adam(model.critic.parameters(), lr=1e-3, betas=(0.0, 0.9)),
    epochs=2,
)
