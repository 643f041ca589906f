"""An optimizer of one's own (Lion), Python state in it, on a model that was pruned."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import prune

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"], state["steps"] = torch.zeros_like(p), 0
                state["steps"] += 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((state["momentum"] * first + p.grad * (1 - first)).sign(), alpha=-group["lr"])
                state["momentum"].mul_(second).add_(p.grad, alpha=1 - second)


def model():
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    prune.l1_unstructured(net[0], "weight", amount=0.3)
    return net


job = paceline.Job(
    model,
    (x[:1400], y[:1400]),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: Lion(p, lr=2e-3, weight_decay=0.01),
    test=(x[1400:], y[1400:]),
    batch_size=70,
    epochs=2,
)
