"""Reinforcement learning: a policy plays episodes on a line of its own, and learns from what it got."""

import sys

import torch
from torch import nn

import paceline


def episode(policy, steps=20):
    place, logs, gains = torch.zeros(1), [], []
    for _ in range(steps):
        choice = torch.distributions.Categorical(logits=policy(place))
        action = choice.sample()
        place = place + (0.2 if action.item() == 1 else -0.2)
        logs.append(choice.log_prob(action))
        gains.append(-float((place - 1).abs()))
    returns = torch.tensor(gains).flip(0).cumsum(0).flip(0)
    return torch.stack(logs), (returns - returns.mean()) / (returns.std() + 1e-6), sum(gains)


def main(plan):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    torch.manual_seed(torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
    with paceline.parallel(policy, optimizer, plan=plan, folder=None) as (policy, optimizer):
        for _ in range(30):
            logs, returns, gained = episode(policy)
            optimizer.zero_grad()
            loss = -(logs * returns).sum()
            loss.backward()
            optimizer.step()
    return -gained


if __name__ == "__main__":
    print(f"loss {main(sys.argv[1]):.4f}")
