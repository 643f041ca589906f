"""The rating that a user gives a movie: factors of both, of which a batch touches only some rows.

paceline train examples/movies/job.py --plan downpour  # or ssp, hogwild: only rows that a batch touches travel
"""

import torch
from torch import nn

import paceline

train = paceline.Shards("movies-shards")
MEAN = train.manifest.columns["rating"].statistics.mean


class Factors(nn.Module):
    def __init__(self, factors: int = 16) -> None:
        super().__init__()
        users, movies = (len(train.words(name)) + 1 for name in ("user", "movie"))
        # The first column of each is a bias.
        self.user = nn.Embedding(users, factors + 1, sparse=True)
        self.movie = nn.Embedding(movies, factors + 1, sparse=True)
        for each in (self.user, self.movie):
            nn.init.normal_(each.weight, std=0.05)

    def forward(self, user: torch.Tensor, movie: torch.Tensor) -> torch.Tensor:
        users, movies = self.user(user), self.movie(movie)
        return (users[:, 1:] * movies[:, 1:]).sum(1) + users[:, 0] + movies[:, 0] + MEAN


def step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    user, movie, rating = batch
    return nn.functional.mse_loss(model(user, movie), rating)


def evaluate(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    user, movie, rating = batch
    return model(user, movie), rating


def rmse(outputs: torch.Tensor, ratings: torch.Tensor) -> float:
    return float((outputs - ratings).square().mean().sqrt())


job = paceline.Job(
    model=Factors,
    data=train,
    test=paceline.Shards("movies-shards", "test"),
    step=step,
    evaluate=evaluate,
    metrics={"RMSE": rmse},
    optimizer=lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    batch_size=256,
    epochs=3,
    name="movies",
)
