"""SimCLR: every sample of the batch is a negative for every other, so the loss is of the batch, not of samples."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images = torch.tensor(load_digits().images, dtype=torch.float32)[:1000, None] / 16


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projector = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, image):
        return nn.functional.normalize(self.projector(self.backbone(image)), dim=1)


def view(image):
    return torch.roll(image, int(torch.randint(-1, 2, ())), dims=3) + 0.1 * torch.randn_like(image)


def nt_xent(model, batch):
    (image,) = batch
    z = torch.cat([model(view(image)), model(view(image))])
    similar = z @ z.T / 0.5
    similar.fill_diagonal_(float("-inf"))
    n = len(image)
    partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return nn.functional.cross_entropy(similar, partner)


job = paceline.Job(
    Encoder,
    DataLoader(TensorDataset(images), batch_size=64, shuffle=True, drop_last=True),
    step=nt_xent,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-3),
    epochs=2,
)
