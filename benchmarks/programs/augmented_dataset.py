"""A small CNN on a Dataset that augments in `__getitem__`."""

import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, random_split

import paceline


class Digits(Dataset):
    def __init__(self, augment=False):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels)
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            image = torch.roll(image, random.choice([-1, 0, 1]), dims=2) + 0.05 * torch.randn_like(image)
        return image, self.labels[index]


train, test = random_split(Digits(augment=True), [1500, 297], generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.head(self.dropout(x.flatten(1)))


job = paceline.Job(
    Net(),
    train,
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=3e-3),
    test=test,
    batch_size=64,
    epochs=2,
)
