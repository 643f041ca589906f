"""`fuse`: trainings, thread counts, the cache, the cores it may use, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.kernels import CannotFuse, build, fuse, machine
from paceline.training.jobs.modules import Subsampling


def small_cnn() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Unflatten(1, (1, 12)),
        nn.Conv2d(1, 3, 5),
        nn.Sigmoid(),
        Subsampling(),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


def data(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(samples, 12, 12, generator=generator)
    return x, (x[:, 3:9, 3:9].mean((1, 2)) * 40).long() % 5


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, weight_decay=1e-3),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.02, lr_decay=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.002),
    "rmsprop with momentum": partial(torch.optim.RMSprop, lr=0.002, momentum=0.5, weight_decay=1e-3),
    "adam": partial(torch.optim.Adam, lr=0.003, weight_decay=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=0.003),
}


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_epoch_is_that_of_pytorch(optimizer: str) -> None:
    """In float64, where updates can be told from one another to the last digits; the last batch is a short one."""
    model, (x, y) = small_cnn().double(), data(150)
    x = x.double()
    twin = copy.deepcopy(model)
    fused = fuse(model, nn.CrossEntropyLoss(), OPTIMIZERS[optimizer], 32)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(3))
    by_hand = OPTIMIZERS[optimizer](twin.parameters())
    for _ in range(2):
        fused.train_epoch(x, y, order)
        for some in order.split(32):
            by_hand.zero_grad()
            nn.functional.cross_entropy(twin(x[some]), y[some]).backward()
            by_hand.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_explain_says_what_was_done() -> None:
    fused = fuse(small_cnn(), nn.CrossEntropyLoss(), OPTIMIZERS["sgd"], 50, threads=1)
    assert fused.explain() == "not compiled yet: the first samples show the shape"
    x, y = data(200)
    fused.train_epoch(x, y, torch.arange(200))
    said = fused.explain()
    assert "path: generated C++" in said
    assert "o3 y8 x8 i1 ky5 kx5" in said
    assert "GFLOP/s" in said
    assert "% of the multiply-adds that 1 core could do at most" in said


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(("inputs", "where"), [(64, "gradient"), (2, "lanes")])
def test_a_layer_over_many_steps_has_its_gradient_by_rows_if_a_row_fills_a_vector(inputs: int, where: str) -> None:
    model = nn.Sequential(nn.Linear(inputs, 4), nn.Flatten(), nn.Linear(160, 3))
    plan = fuse(model, nn.CrossEntropyLoss(), None, 16).compiled(torch.randn(16, 40, inputs)).plan
    assert plan.places["d_0.weight"].region == where


def test_l1_pulls_weights_to_zero_by_their_signs() -> None:
    model = nn.Linear(3, 2).double()
    before = copy.deepcopy(model)
    x, y = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
    fused = fuse(model, nn.MSELoss(), partial(torch.optim.SGD, lr=0.5), 4, l1=0.01)
    fused.train_epoch(x, y, torch.arange(4))
    assert torch.allclose(model.weight, before.weight - 0.005 * before.weight.sign())


@pytest.mark.usefixtures("quickly_compiled")
def test_groups_and_schedules_are_the_optimizers_own() -> None:
    """Each parameter group by its own learning rate, as it is when the epoch begins."""
    model = nn.Linear(4, 3)
    before = copy.deepcopy(model)
    weight, bias = model.weight, model.bias

    def two_groups(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [weight], "lr": 0.0}, {"params": [bias], "lr": 0.1}])

    fused = fuse(model, nn.CrossEntropyLoss(), two_groups, 8)
    x, y, order = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8)
    fused.train_epoch(x, y, order)
    assert torch.equal(model.weight, before.weight)
    assert not torch.equal(model.bias, before.bias)
    assert fused.optimizer is not None
    fused.optimizer.param_groups[0]["lr"] = 0.1
    fused.train_epoch(x, y, order)
    assert not torch.equal(model.weight, before.weight)


@pytest.mark.usefixtures("quickly_compiled")
def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    found = set()
    for threads in (1, 2, 3, 8):
        model, (x, y) = small_cnn(), data(300)
        fused = fuse(model, nn.CrossEntropyLoss(), OPTIMIZERS["adam"], 100, threads=threads)
        fused.train_epoch(x, y, torch.arange(300))
        found.add(tuple(p.detach().numpy().tobytes() for p in model.parameters()))
    assert len(found) == 1


def test_training_learns_as_pytorch_does() -> None:
    """Three epochs over five seeds: the accuracies differ by less than the seeds' own spread."""
    ours, theirs = [], []
    x, y = data(2000)
    for seed in range(5):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(144, 24), nn.Tanh(), nn.Linear(24, 5))
        twin = copy.deepcopy(model)
        fused, by_hand = (OPTIMIZERS["momentum"] for _ in range(2))
        trained = fuse(model, nn.CrossEntropyLoss(), fused, 50)
        stepper = by_hand(twin.parameters())
        for _ in range(3):
            order = torch.randperm(2000)
            trained.train_epoch(x, y, order)
            for some in order.split(50):
                stepper.zero_grad()
                nn.functional.cross_entropy(twin(x[some]), y[some]).backward()
                stepper.step()
        for accuracies, net in ((ours, model), (theirs, twin)):
            accuracies.append(float((net(x).argmax(1) == y).float().mean()))
    assert abs(sum(ours) - sum(theirs)) / 5 <= max(max(theirs) - min(theirs), 0.01)


@pytest.mark.usefixtures("quickly_compiled")
def test_dropout_keeps_the_mean_and_follows_the_seed() -> None:
    model = nn.Sequential(nn.Dropout(0.4), nn.Linear(400, 1, bias=False))
    nn.init.constant_(model[1].weight, 1.0)
    fused = fuse(model, nn.MSELoss(), None, 64)
    x, y = torch.ones(64, 400), torch.zeros(64, 1)
    losses = [fused.loss_and_gradients(x, y, seed)[0] for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    gradients = fused.loss_and_gradients(x, torch.full((64, 1), 400.0), 3)[1]["1.weight"]
    # The mean of (sum of kept) is 400: of its square, 400^2 and the variance of 400 draws of 0 or 1/0.6.
    assert losses[0] == pytest.approx(400**2 + 400 * (0.4 / 0.6), rel=0.02)
    assert gradients.shape == (1, 400)


def test_the_second_time_it_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(144, 5)), data(20)
    explained = []
    for _ in range(2):
        fused = fuse(model, nn.CrossEntropyLoss(), None, 20)
        fused.loss_and_gradients(x, y)
        explained.append(fused.explain())
    assert "compiled in" in explained[0]
    assert "contract" in explained[0]
    assert "from the cache" in explained[1]
    assert len(list(tmp_path.rglob("*.so"))) == len(list(tmp_path.rglob("*.cpp"))) == 1


def test_without_a_compiler_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    build.compiler.cache_clear()
    try:
        with pytest.raises(build.NoCompiler, match=r"no C\+\+ compiler was found.*compute='autograd'"):
            build.compiler()
    finally:
        build.compiler.cache_clear()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"": "max 100000"}, None), ({"": "150000 100000"}, 1.5), ({"": "400000 100000", "a": "100000 100000"}, 1.0)],
)
def test_a_containers_quota_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], expected: float | None
) -> None:
    for folder, text in limits.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "cpu.max").write_text(text)
    monkeypatch.setattr(machine, "_group", lambda: "/a")
    assert machine.quota(tmp_path) == expected


def hooked(part: nn.Module, layer: int) -> nn.Module:
    """A module with a hook on one of its layers."""
    list(part.modules())[layer].register_forward_hook(lambda layer, given, found: 2 * found)
    return part


def clamped(part: nn.Linear) -> nn.Module:
    """A layer with a hook on the gradient of its weight."""
    part.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return part


class Halved(nn.MSELoss):
    """A loss that inherits, and computes something else."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return 0.5 * super().forward(input, target)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: nn.Conv2d(1, 2, 5), (1, 3, 3), "kernel that spans 5x5, and gets images of 3x3"),
        (lambda: nn.MaxPool2d(4), (1, 3, 3), "the kernel is larger"),
        (lambda: nn.Conv2d(2, 2, 1), (1, 3, 3), "gets 1 channels, and wants 2"),
        (lambda: nn.Linear(4, 0), (4,), "has no features"),
        (lambda: nn.Linear(4, 2), (5,), "gets 5 features, and wants 4"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.RReLU()), (4,), "layer 1 .RReLU.*has no kernel.*autograd"),
        (lambda: nn.Sequential(nn.Linear(4, 4), Branching()), (4,), "cannot be followed"),
        (lambda: nn.Conv2d(1024, 1024, 5), (1024, 5, 5), "kernels are for small networks"),
        (lambda: nn.LSTM(4, 3, 2), (5, 4), "batch_first=False, and samples are dimension 0"),
        (lambda: nn.LayerNorm(3), (5, 4), r"the last dimensions to be \(3,\)"),
        (lambda: nn.MultiheadAttention(4, 2), (5, 4), "and batch_first"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=0)), (4,), "goes over dimension 0, the samples'"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (4,), "is computed from other parameters"),
        (lambda: hooked(nn.Sequential(nn.Linear(4, 4)), 1), (4,), "layer 0 has a hook.*remove it, or take .*autograd"),
        (lambda: hooked(nn.Sequential(nn.Linear(4, 4)), 0), (4,), "layer model has a hook"),
        (lambda: clamped(nn.Linear(4, 4)), (4,), "the parameter weight has a hook"),
        (lambda: nn.Sequential(nn.ConstantPad1d((-1, 0), 1.0), nn.Linear(3, 4)), (4,), r"pads by \(-1, 0\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_what_has_no_kernel_is_named(make: Callable[[], nn.Module], shape: tuple[int, ...], message: str) -> None:
    model = make()
    if not list(model.parameters()):
        model = nn.Sequential(model, nn.Conv2d(1, 1, 1))
    with pytest.raises(CannotFuse, match=message):
        fuse(model, nn.MSELoss(), None, 4).prepare(torch.zeros(4, *shape))


def test_losses_and_optimizers_without_a_kernel_are_named() -> None:
    with pytest.raises(CannotFuse, match=r"the loss PoissonNLLLoss.* has no kernel; CrossEntropyLoss, .* have"):
        fuse(nn.Linear(2, 2), nn.PoissonNLLLoss(), None, 4)
    with pytest.raises(CannotFuse, match=r"the loss Halved\(\) has no kernel"):
        fuse(nn.Linear(2, 2), Halved(), None, 4)
    with pytest.raises(CannotFuse, match=r"the loss MSELoss\(\) has no kernel"):
        fuse(nn.Linear(2, 2), hooked(nn.MSELoss(), 0), None, 4)
    with pytest.raises(CannotFuse, match="CrossEntropyLoss with weight= and label_smoothing="):
        fuse(nn.Linear(2, 2), nn.CrossEntropyLoss(weight=torch.ones(2), label_smoothing=0.1), None, 4)
    with pytest.raises(CannotFuse, match="MSELoss with reduction='sum'"):
        fuse(nn.Linear(2, 2), nn.MSELoss(reduction="sum"), None, 4)
    with pytest.raises(CannotFuse, match="NLLLoss has a kernel where the model ends in a log-softmax"):
        fuse(nn.Linear(2, 2), nn.NLLLoss(), None, 4).prepare(torch.zeros(1, 2))
    with pytest.raises(CannotFuse, match="Adadelta"):
        fuse(nn.Linear(2, 2), nn.MSELoss(), torch.optim.Adadelta, 4).prepare(torch.zeros(1, 2))
    with pytest.raises(CannotFuse, match="class numbers from 0 to 7"):
        fuse(nn.Linear(2, 2), nn.CrossEntropyLoss(), None, 4).loss_and_gradients(
            torch.zeros(2, 2), torch.tensor([0, 7])
        )


@pytest.mark.parametrize(
    ("x", "y", "order", "message"),
    [
        (torch.zeros(4, 2), torch.zeros(3, dtype=torch.long), [0], "4 samples, 3 targets"),
        (torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), [], "nothing to train on"),
        (torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), [0, 4], "an order from 0 to 4, of 4 samples"),
        (torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), [-1], "an order from -1"),
        (torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.long), [0], "one class per sample"),
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), [0], "gets 3 features, and wants 2"),
    ],
)
def test_what_would_lead_astray_is_refused(x: Tensor, y: Tensor, order: list[int], message: str) -> None:
    fused = fuse(nn.Linear(2, 2), nn.CrossEntropyLoss(), OPTIMIZERS["sgd"], 4)
    with pytest.raises(CannotFuse, match=message):
        fused.train_epoch(x, y, torch.tensor(order, dtype=torch.long))


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("function", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ReLU6])
@pytest.mark.parametrize("batch", [1, 20])
def test_what_is_not_a_number_stays_so(function: type[nn.Module], batch: int) -> None:
    model = nn.Sequential(nn.Linear(4, 5), function(), nn.Linear(5, 3))
    x, y = torch.randn(batch, 4), torch.zeros(batch, dtype=torch.long)
    x[-1, 2] = float("nan")
    loss, gradients = fuse(model, nn.CrossEntropyLoss(), None, batch).loss_and_gradients(x, y)
    assert math.isnan(loss)
    assert gradients["0.weight"].isnan().any()


@pytest.mark.usefixtures("quickly_compiled")
def test_what_the_optimizer_remembers_has_one_shape() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    fused = fuse(model, nn.CrossEntropyLoss(), OPTIMIZERS["adam"], 4)
    y, order = torch.zeros(4, dtype=torch.long), torch.arange(4)
    fused.train_epoch(torch.zeros(4, 1, 6, 6), y, order)
    with pytest.raises(CannotFuse, match="of another shape"):
        fused.train_epoch(torch.zeros(4, 1, 5, 5), y, order)


class NamedLikeWords(nn.Module):
    """Results whose names in a traced graph are words that arguments have, such as `mean`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(torch.tanh(self.first(x)) * 2)
        mean, total = seen.mean(1, keepdim=True), torch.sum(seen, 1, keepdim=True)
        found: torch.Tensor = self.last(seen + torch.sigmoid(mean) + torch.tanh(total))
        return found


def test_results_may_be_named_like_words_of_arguments() -> None:
    torch.manual_seed(0)
    mine, x, y = NamedLikeWords().double(), torch.randn(32, 6).double(), torch.randint(3, (32,))
    other = copy.deepcopy(mine)
    fuse(mine, nn.CrossEntropyLoss(), partial(torch.optim.SGD, lr=0.1), 32).train_epoch(x, y, torch.arange(32))
    nn.functional.cross_entropy(other(x), y).backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    for one, two in zip(mine.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
