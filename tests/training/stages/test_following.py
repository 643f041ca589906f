"""What users write inside a model that is cut: changes in place, regions without gradients, functions and modules that
are not what torch.fx takes them for. Either the numbers are those of one process, or it is refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from paceline.errors import JobError
from paceline.interfaces.testing.conformance import same_numbers
from paceline.plans.plan import make
from paceline.runtime.engines.setup import set_up
from paceline.training.stages.cutting import Blueprint
from tests.training.stages.cuttable import job_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:the loss is not a mean over samples", "ignore:.*weight_norm.* is deprecated"
)


class Basic(nn.Module):
    """Of a residual net, as torchvision has it."""

    def __init__(self, inward: int, outward: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inward, outward, 3, stride, 1, bias=False), nn.BatchNorm2d(outward)
        self.conv2, self.bn2 = nn.Conv2d(outward, outward, 3, 1, 1, bias=False), nn.BatchNorm2d(outward)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Conv2d(inward, outward, 1, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        result: Tensor = self.relu(out)
        return result


def resnet() -> nn.Module:
    stem = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(*stem, Basic(4, 4), Basic(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


@pytest.mark.parametrize("by", ["time", "memory"])
@pytest.mark.parametrize("plan", ["one_f_one_b", "zero_bubble", "gpipe"])
def test_nets_that_compute_in_place_are_cut_where_they_can_be(plan: str, by: str) -> None:
    job = job_of(resnet(), 3, 8, 8)
    recompute = "none" if plan == "zero_bubble" else "all"
    same_numbers(job, make(plan, workers=3, micro_batches=3, balance=by, recompute=recompute), "virtual")


def test_nets_that_compute_in_place_are_cut_by_name_with_processes() -> None:
    same_numbers(job_of(resnet(), 3, 8, 8), make("one_f_one_b", workers=3, micro_batches=3, cuts="4+5"), "local")


@pytest.mark.parametrize(
    ("cuts", "says"),
    [("2", "cannot be cut before '2': _2 changes in place.*inplace=False"), ("5.relu", "relu.* changes in place")],
)
def test_a_cut_before_a_change_in_place_is_refused(cuts: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        set_up(job_of(resnet(), 3, 8, 8), make("gpipe", cuts=cuts), "virtual")


class Body(nn.Module):
    """Two layers with something between them."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.enter, self.middle, self.head = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 5)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.middle(self.between(torch.tanh(self.enter(x)))))
        result: Tensor = self.head(h)
        return result


class ThroughAView(Body):
    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        seen = h.view(-1)
        other = self.middle(h * 1.0)
        seen.mul_(0.5)
        result: Tensor = self.head(h + other)
        return result


def test_a_change_in_place_is_seen_through_a_view() -> None:
    job = job_of(ThroughAView(), 6)
    with pytest.raises(JobError, match="mul_ changes in place what would come from another stage"):
        set_up(job, make("gpipe", cuts="middle"), "virtual")
    same_numbers(job, make("gpipe", cuts="add"), "virtual")


class InItsInput(Body):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5).div_(0.5))


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return -ctx.scale * gradients[0], None


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign() + 0.1 * torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class WithFunctions(Body):
    """Gradient reversal, and a straight-through estimator that draws."""

    def between(self, h: Tensor) -> Tensor:
        result: Tensor = Straight.apply(h) + Reversed.apply(h, 0.3)
        return result


class Backbone(Body):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = torch.tanh(self.enter(x))
        result: Tensor = self.head(torch.tanh(self.middle(x)))
        return result


class Target(Body):
    """A region without gradients in the middle, of what else has one."""

    def between(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            goal = self.middle(h).sign()
            goal = goal * 0.5
        return h * goal


class Checkpointed(Body):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant, self.drop = reentrant, nn.Dropout(0.2)

    def between(self, h: Tensor) -> Tensor:
        found: Tensor = checkpoint(nn.Sequential.forward, self.parts, h, use_reentrant=self.reentrant)
        return found

    @property
    def parts(self) -> Any:
        return nn.Sequential(self.middle, self.drop)


class Looking(Body):
    """Leaves something behind for whoever wants to look."""

    seen: Tensor | None = None

    def between(self, h: Tensor) -> Tensor:
        self.seen = h
        return h


class Average(nn.Module):
    """Of what it has seen, in a buffer of its own, which its result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


class Warming(nn.Module):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * min(1.0, self.calls / 10)


def normed(norm: Any) -> nn.Module:
    return nn.Sequential(norm(nn.Linear(6, 8)), nn.Tanh(), norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 5))


MODELS = {
    "its input": InItsInput,
    "functions": WithFunctions,
    "no gradient at first": Backbone,
    "no gradient in between": Target,
    "looked at": Looking,
    "a mean of its own": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Average(), nn.Tanh(), nn.Linear(6, 5)),
    "a count of its own": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Warming(), nn.Tanh(), nn.Linear(6, 5)),
    "weight norm": partial(normed, parametrizations.weight_norm),
    "spectral norm": partial(normed, parametrizations.spectral_norm),
    "old spectral norm": partial(normed, nn.utils.spectral_norm),
}


@pytest.mark.parametrize("plan", ["one_f_one_b:cuts", "zero_bubble", "gpipe:recompute"])
@pytest.mark.parametrize("kind", MODELS)
def test_it_is_what_one_process_computes(kind: str, plan: str) -> None:
    name, _, more = plan.partition(":")
    options = {"recompute": "all"} if more == "recompute" and kind != "a count of its own" else {}
    model = MODELS[kind]()
    same_numbers(job_of(model, 6), make(name, workers=2, micro_batches=3, **options), "virtual", tolerance=1e-12)


@pytest.mark.parametrize("kind", ["functions", "no gradient in between", "spectral norm"])
def test_it_is_what_one_process_computes_also_with_processes(kind: str) -> None:
    plan = make("one_f_one_b", workers=2, micro_batches=3)
    same_numbers(job_of(MODELS[kind](), 6), plan, "local", tolerance=1e-12)


def blueprint_of(model: Any, **options: Any) -> Blueprint:
    job = job_of(nn.Linear(6, 5), 6).with_(model=lambda: model().double())
    made = set_up(job, make("gpipe", **options), "virtual").blueprint
    assert made is not None
    return made


def test_a_function_is_one_piece_under_its_own_name() -> None:
    made = blueprint_of(WithFunctions, workers=3, cuts="reversed_1+middle")
    assert made.exported is None
    assert made.carries_chance  # for all that is known of it


class Stateful(Body):
    before: Tensor | None = None

    def between(self, h: Tensor) -> Tensor:
        before, self.before = self.before, h.detach()
        return h if before is None else h + before.mean(0)


class Annealed(Body):
    calls = 0

    def between(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * min(1.0, self.calls / 10)


class Moving(Body):
    def __init__(self) -> None:
        super().__init__()
        self.mean = Average()

    def between(self, h: Tensor) -> Tensor:
        self.mean.mean += h.detach().mean(0)
        return h - self.mean.mean


class Replaced(Moving):
    def between(self, h: Tensor) -> Tensor:
        self.mean.mean = self.mean.mean + h.detach().mean(0)
        return h - self.mean.mean


class Mixed(Body):
    def between(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.matmul(h, h.t()).double() @ h


class Holding(Body):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = 2 * self.enter.weight


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Stateful, "computes something else: a loss of"),
        (Annealed, "something else: a loss of .* change itself"),
        (Moving, "changes its buffer mean"),
        (Replaced, "puts another tensor in the place of its buffer mean.mean.*in place"),
        (Mixed, "chooses its precision itself, by torch.autocast.*; move that part into a module of its own"),
        (Holding, "Holding holds scaled, .*parametrize"),
    ],
)
def test_what_would_be_another_model_is_refused(model: Any, says: str) -> None:
    with pytest.raises(JobError, match=says):
        blueprint_of(model)


def test_a_deferred_gradient_is_that_of_the_parameter() -> None:
    """Not that of a tensor that was made of others before the forward."""
    model = Body()
    nn.utils.spectral_norm(model.middle)
    same_numbers(job_of(model, 6), make("zero_bubble", micro_batches=3), "virtual", tolerance=1e-12)


class OfSeveral(nn.Module):
    """Four dense layers in one, by torch.func.vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(4, 6, 6)), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.func.vmap(lambda weight, x: x @ weight, (0, None))(self.weight, x)
        result: Tensor = self.head(made.mean(0))
        return result


def test_a_model_that_is_refused_leaves_no_transform_of_torch_func_behind() -> None:
    with pytest.raises(JobError, match="run one by one"):
        set_up(job_of(OfSeveral(), 6), make("gpipe", workers=2), "virtual")
    torch.randn(3)  # vmap would not let it
