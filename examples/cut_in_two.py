# %% [markdown]
# # Cutting a model in two
#
# A model that does not fit into the memory of one worker can be cut into stages, one per worker. While the second
# stage computes one micro-batch, the first already computes the next. Paceline finds the cut by tracing the model; its
# code does not change.

# %%
from functools import partial

import torch
from torch import nn

import paceline


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.inner(x))


generator = torch.Generator().manual_seed(0)
x = torch.randn(1600, 64, generator=generator)
y = (x[:, :8].sum(1) > 0).long()
job = paceline.Job(
    model=lambda: nn.Sequential(*(Residual(64) for _ in range(4)), nn.Linear(64, 2)),
    data=(x, y),
    loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.SGD, lr=0.05),
    batch_size=80,
)

# %% [markdown]
# Every schedule of a pipeline is a table. `draw` shows it before anything is trained: which worker computes which
# micro-batch forward (F) and backward (B), and when it is idle.

# %%
from paceline.planning.explain.drawing import draw  # noqa: E402
from paceline.plans.plan import Plan  # noqa: E402

print(draw(Plan.parse("one_f_one_b:workers=2,micro_batches=4")))

# %% [markdown]
# The gradient of a batch does not depend on the cut: one process that computes the same four micro-batches one after
# another ends with the same parameters.

# %%
cut = paceline.train(job, "one_f_one_b:workers=2,micro_batches=4", folder=None)
whole = paceline.train(job, "sequential:chunks=4", folder=None)
difference = max(
    (a - b).abs().max().item() for a, b in zip(cut.model.parameters(), whole.model.parameters(), strict=True)
)
print(f"largest difference between the parameters: {difference:.1e}")
assert difference < 1e-4

# %% [markdown]
# docs/internals/pipelines.md has the other schedules, cuts by hand, and the memory of each stage.
