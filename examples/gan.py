"""Train a generator and a discriminator against each other, by any plan: one optimizer with a group for each.

The generator's loss must not change the discriminator. So it is computed with the discriminator's parameters as they
are, without a gradient to them; one backward pass then gives each network the gradient of its own loss.
"""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import paceline

real = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + 2


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fake = self.generator(torch.randn(len(x), 4))
        judged = self.discriminator(torch.cat([x, fake.detach()]))
        fixed = {name: parameter.detach() for name, parameter in self.discriminator.named_parameters()}
        return judged, functional_call(self.discriminator, fixed, fake)


def step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    (x,) = batch
    judged, fooled = model(x)
    ones = torch.ones(len(x), 1)
    return 2 * bce(judged, torch.cat([ones, 0 * ones])) + bce(fooled, ones)


def optimizer(model: Gan) -> torch.optim.Optimizer:
    return torch.optim.Adam(
        [
            {"params": model.generator.parameters(), "lr": 1e-3},
            {"params": model.discriminator.parameters(), "lr": 2e-3},
        ],
        betas=(0.5, 0.999),
    )


job = paceline.Job(
    Gan, DataLoader(TensorDataset(real), batch_size=50, shuffle=True), step=step, optimizer=optimizer, epochs=3
)

if __name__ == "__main__":
    run = paceline.train(job, "ring", workers=2)
    made = run.model.generator(torch.randn(500, 4)).detach()
    print(f"real mean {real.mean():.2f}, generated mean {made.mean():.2f}")
