"""A small network learns from a large one that is frozen."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.student = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        self.teacher.requires_grad_(False)

    def forward(self, x):
        return self.student(x)


def step(model, batch):
    x, y = batch
    with torch.no_grad():
        soft = model.teacher(x).softmax(1)
    logits = model(x)
    distance = nn.functional.kl_div(logits.log_softmax(1), soft, reduction="batchmean")
    return 0.5 * distance + 0.5 * nn.functional.cross_entropy(logits, y)


job = paceline.Job(
    Distilled,
    DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True),
    step=step,
    optimizer=lambda model: torch.optim.Adam(model.student.parameters(), lr=3e-3),
    epochs=2,
)
