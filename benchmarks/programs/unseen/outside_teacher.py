"""Distillation from a teacher that is a global of the script, in eval mode, which is no part of the model."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
torch.manual_seed(1)
teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)).eval().requires_grad_(False)


def step(student, batch):
    inputs, target = batch
    output, hint = student(inputs), teacher(inputs)
    soft = nn.functional.kl_div(output.log_softmax(1), hint.log_softmax(1), reduction="batchmean", log_target=True)
    return nn.functional.cross_entropy(output, target) + soft


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
    (x[:1400], y[:1400]),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    batch_size=70,
    epochs=2,
)
