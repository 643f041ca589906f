"""A GAN in a loop of its own: two networks, two optimizers, two steps for every batch."""

import sys

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import paceline

real = torch.randn(800, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + 2


def main(plan):
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    judge = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    with (
        paceline.parallel(generator, for_generator, plan=plan, folder=None) as (generator, for_generator),
        paceline.parallel(judge, for_judge, plan=plan, folder=None) as (judge, for_judge),
    ):
        for (x,) in DataLoader(TensorDataset(real), batch_size=50, shuffle=True):
            fake = generator(torch.randn(len(x), 4))
            loss = bce(judge(x), torch.ones(len(x), 1)) + bce(judge(fake.detach()), torch.zeros(len(x), 1))
            for_judge.zero_grad()
            loss.backward()
            for_judge.step()
            for_generator.zero_grad()
            bce(judge(fake), torch.ones(len(x), 1)).backward()
            for_generator.step()
            for_judge.zero_grad()
    return float(loss.detach())


if __name__ == "__main__":
    print(f"loss {main(sys.argv[1]):.4f}")
