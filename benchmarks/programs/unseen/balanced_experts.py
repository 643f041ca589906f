"""A mixture of experts that returns its output with a loss of its own, which keeps the experts balanced."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Linear(64, 10) for _ in range(4))

    def forward(self, x):
        share = self.gate(x).softmax(1)
        chosen = share.argmax(1)
        output = x.new_zeros(len(x), 10)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            output = output.index_add(0, rows, expert(x[rows]) * share[rows, number, None])
        return output, 4 * (share.mean(0) * torch.bincount(chosen, minlength=4) / len(x)).sum()


def loss(output, target):
    logits, balance = output
    return nn.functional.cross_entropy(logits, target) + 0.01 * balance


job = paceline.Job(
    Experts,
    (x[:1400], y[:1400]),
    loss,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    test=(x[1400:], y[1400:]),
    batch_size=70,
    epochs=2,
)
