"""Adversarial training: the gradient with respect to the inputs makes them harder before the loss is computed."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def step(model, batch):
    inputs, target = batch
    inputs = inputs.clone().requires_grad_()
    nn.functional.cross_entropy(model(inputs), target).backward()
    harder = (inputs + 0.05 * inputs.grad.sign()).detach()
    model.zero_grad()
    return nn.functional.cross_entropy(model(harder), target)


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)),
    (x[:1400], y[:1400]),
    step=step,
    optimizer=lambda p: torch.optim.SGD(p, lr=0.2),
    batch_size=70,
    epochs=2,
)
