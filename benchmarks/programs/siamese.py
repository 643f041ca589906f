"""A siamese network on pairs of images with a contrastive loss."""

import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Pairs(Dataset):
    """Each item draws a partner of the same or of another class."""

    def __init__(self, first, last):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32)[first:last] / 16
        self.labels = labels[first:last].tolist()
        self.of_class = {label: [i for i, other in enumerate(self.labels) if other == label] for label in range(10)}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        same = random.random() < 0.5
        own = self.labels[index]
        label = own if same else random.choice([other for other in range(10) if other != own])
        return (self.images[index], self.images[random.choice(self.of_class[label])]), float(same)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, pair):
        left, right = pair
        return nn.functional.pairwise_distance(self.embed(left), self.embed(right))


def contrastive(distance, same):
    return (same * distance**2 + (1 - same) * torch.relu(1 - distance) ** 2).mean()


job = paceline.Job(
    Siamese,
    DataLoader(Pairs(0, 1400), batch_size=64, shuffle=True, num_workers=1),
    contrastive,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-3),
    test=DataLoader(Pairs(1400, 1797), batch_size=64),
    epochs=2,
)
