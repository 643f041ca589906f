"""The way forward in generated code computes what a module computes in evaluation mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.kernels import CannotFuse
from paceline.kernels.replicas import Forward
from tests.kernels.networks import Case, drawn, encoders, images, sequences

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def check(case: Case) -> bool:
    """Compare the scores; return whether the network has no layer that computes something else in training."""
    model = case.model.train()
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        with pytest.raises(CannotFuse, match="evaluation mode"):
            Forward(model, case.loss, case.x[:1])
        return False
    forward = Forward(model, case.loss, case.x[:1])
    found = forward.scores(model, case.x)
    with torch.no_grad():
        wanted = model.eval()(case.x)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-10)
    return True


def test_random_networks() -> None:
    cases = [*drawn(images(), 8), *drawn(sequences(), 5), *drawn(encoders(), 2)]
    assert sum(map(check, cases)) >= 5


def test_dropout_is_left_out_and_the_last_logarithms_are_not() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Dropout(0.2), nn.Linear(6, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 3), nn.Dropout(0.1), nn.LogSoftmax(1)
    ).double()
    x = torch.randn(19, 6, dtype=torch.float64)
    assert check(Case(model, x, torch.randint(0, 3, (19,)), nn.NLLLoss()))


def test_other_models_of_the_shape_are_computed_with_their_own_parameters() -> None:
    models = [nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2)) for _ in range(3)]
    forward = Forward(models[0], nn.MSELoss(), torch.zeros(1, 4))
    x = torch.randn(33, 4)
    for model in models:
        assert torch.allclose(forward.scores(model, x), model(x), rtol=1e-5, atol=1e-6)


def test_samples_of_another_kind_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    forward = Forward(model, nn.CrossEntropyLoss(), torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(CannotFuse, match="tokens from 0 to 9"):
        forward.scores(model, torch.tensor([[0, 9]]))


def test_numbers_that_no_data_changes_are_there() -> None:
    torch.manual_seed(0)

    class Positions(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * torch.arange(1, x.size(1) + 1))

    assert check(Case(Positions(5, 3), torch.randn(4, 5), torch.randint(3, (4,)), nn.CrossEntropyLoss()).double())


@pytest.mark.parametrize("last", [False, True])
def test_each_place_has_its_scores_where_each_has_a_class(last: bool) -> None:
    """In the order of the model, whichever the loss goes through them in."""
    torch.manual_seed(0)

    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if last else x.transpose(1, 2)

    class PerPlace(nn.CrossEntropyLoss):
        def forward(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return super().forward(scores.flatten(0, 1), y.flatten())

    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), Turned())
    loss = PerPlace() if last else nn.CrossEntropyLoss()
    assert check(Case(model, torch.randn(19, 6, 4), torch.randint(3, (19, 6)), loss).double())
