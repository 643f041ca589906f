"""Four networks in one by torch.func.vmap."""

import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import paceline


class Ens(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        ms = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(n)]
        ps, _ = stack_module_state(ms)
        self.p = nn.ParameterDict({k.replace(".", "_"): nn.Parameter(v.detach()) for k, v in ps.items()})
        object.__setattr__(self, "base", copy.deepcopy(ms[0]).to("meta"))

    def forward(self, x):
        return vmap(lambda p, x: functional_call(self.base, p, (x,)), (0, None))(
            {k.replace("_", "."): v for k, v in self.p.items()}, x
        ).transpose(0, 1)


def loss(o, y):
    return nn.functional.cross_entropy(o.flatten(0, 1), y.repeat_interleave(o.shape[1]))


x = torch.randn(200, 6)
y = (x[:, 0] > 0).long()
job = paceline.Job(
    Ens,
    (x, y),
    loss,
    optimizer=lambda p: torch.optim.SGD(p, 0.1),
    batch_size=20,
    epochs=2,
    test=(x, y),
    metrics={"acc": lambda o, y: (o.mean(1).argmax(1) == y).float().mean()},
)
