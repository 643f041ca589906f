"""A learning rate that falls by epochs, written by the user as a scheduler class."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Halving(torch.optim.lr_scheduler.LRScheduler):
    """Halve the learning rate after every epoch."""

    def get_lr(self):
        return [base * 0.5**self.last_epoch for base in self.base_lrs]


job = paceline.Job(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=50, shuffle=True),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.2),
    lr_scheduler=Halving,
    lr_scheduler_interval="epoch",
    test=DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=50),
    epochs=3,
)
