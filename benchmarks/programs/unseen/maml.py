"""Meta-learning: each sample is a task, and the loss is taken after a step of gradient descent inside of it."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, Dataset

import paceline


class Sines(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        height, shift = torch.rand(2, generator=draw)
        x = torch.rand(20, 1, generator=draw) * 6 - 3
        y = (height + 0.5) * torch.sin(x + 3 * shift)
        return x[:10], y[:10], x[10:], y[10:]


def step(model, batch):
    parameters = dict(model.named_parameters())

    def error(parameters, x, y):
        return nn.functional.mse_loss(functional_call(model, parameters, (x,)), y)

    def one_task(x, y, later_x, later_y):
        slopes = grad(error)(parameters, x, y)
        adapted = {name: parameter - 0.05 * slopes[name] for name, parameter in parameters.items()}
        return error(adapted, later_x, later_y)

    return vmap(one_task)(*batch).mean()


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)),
    DataLoader(Sines(), batch_size=20, shuffle=True),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    epochs=3,
)
