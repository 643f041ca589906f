"""AveragedModel inside the model, SWALR, class weights."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

import paceline


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        self.avg = AveragedModel(self.m)

    def forward(self, x):
        if self.training:
            self.avg.update_parameters(self.m)
            return self.m(x)
        return self.avg(x)


x = torch.randn(200, 6)
y = (x[:, 2] > 0).long()
job = paceline.Job(
    Net,
    (x, y),
    nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])),
    optimizer=lambda m: torch.optim.SGD([p for p in m if p.requires_grad], 0.1),
    lr_scheduler=lambda o: SWALR(o, 0.05),
    batch_size=20,
    epochs=2,
    test=(x, y),
)
