"""Two outputs with learnt weights of their losses; samples that carry a name."""

import torch
from torch import nn

import paceline


class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(8, 16)
        self.age, self.sex = nn.Linear(16, 1), nn.Linear(16, 2)
        self.logvar = nn.Parameter(torch.zeros(2))

    def forward(self, image, *, flip=False):
        h = torch.relu(self.b(image))
        return {"age": self.age(h)[:, 0], "sex": self.sex(h)}


data = [{"image": torch.randn(8), "age": torch.rand(()), "sex": i % 2, "id": f"person-{i}"} for i in range(120)]


def step(m, b):
    o = m(b["image"])
    loss = torch.stack([nn.functional.l1_loss(o["age"], b["age"]), nn.functional.cross_entropy(o["sex"], b["sex"])])
    return (loss * (-m.logvar).exp() + m.logvar).sum()


job = paceline.Job(
    Multi,
    data,
    step=step,
    optimizer=lambda model: torch.optim.SGD(
        [
            {"params": model.b.parameters()},
            {"params": [*model.age.parameters(), *model.sex.parameters(), model.logvar], "lr": 0.01},
        ],
        lr=0.1,
    ),
    batch_size=20,
    epochs=2,
    test=data,
    evaluate=lambda m, b: (m(b["image"])["sex"], b["sex"]),
    metrics={"acc": lambda o, y: (o.argmax(1) == y).float().mean()},
    evaluate_every=3,
)
