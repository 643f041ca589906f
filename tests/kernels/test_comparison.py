"""Generated code is compared with PyTorch before the first update, once for each text: wrong code trains nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import JobError, JobWarning
from paceline.interfaces.api.train import train
from paceline.kernels import build, comparison, fuse, fuse_replicas, processors
from paceline.kernels.comparison import WrongCode, compared
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers import cpp
from paceline.kernels.weights import REALS
from paceline.training.data.opening import open_source
from paceline.training.gradients import choice
from paceline.training.gradients.fastest_stack import Forms
from paceline.training.gradients.vmap_stack import VmapStack
from paceline.training.jobs.job import Job

SGD = partial(torch.optim.SGD, lr=0.1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(48, 4))


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(60, 1, 6, 6, generator=generator), torch.randint(4, (60,), generator=generator)


def a_job(**changes: object) -> Job:
    return Job(model=network, data=samples(), loss=nn.CrossEntropyLoss(), optimizer=SGD, batch_size=10).with_(**changes)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without notes."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS))
    return tmp_path


def short(plan: Plan, rule: Rule) -> str:
    """The text, in which one round of the longest loop is missing."""
    whole = cpp.text(plan, rule)
    assert "< 48;" in whole
    return whole.replace("< 48;", "< 47;")


@pytest.fixture
def wrong(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.Form, "__init__", lambda self, **given: self.__dict__.update(WRONG | given))


WRONG: dict[str, Callable[..., object]] = {"target": processors.vector_target, "text": short, "load": processors.load}


def notes(folder: Path) -> list[int]:
    return [compared(file) for file in folder.rglob("*.so")]


def test_a_text_is_compared_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another network of the same text is not compared again, but for a larger batch."""
    calls: list[int] = []
    real = comparison.by_autograd
    monkeypatch.setattr(comparison, "by_autograd", lambda *given: (calls.append(len(given[2])), real(*given))[1])
    (x, y), loss = samples(), nn.CrossEntropyLoss()
    for batch in (10, 10, 20):
        fuse(network(), loss, SGD, batch).train_epoch(x, y, torch.arange(60))
    assert calls == [2, 10, 2, 20]
    assert notes(fresh) == [20]


def test_a_large_batch_is_compared_in_part(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), loss = samples(), nn.CrossEntropyLoss()
    fused = fuse(network(), loss, SGD, 40)
    monkeypatch.setattr("paceline.kernels.fused.MOST", 12 * fused.compiled(x).plan.flops)
    fused.train_epoch(x, y, torch.arange(60))
    assert notes(fresh) == [12]


@pytest.mark.parametrize("batch", [1, 10])
def test_training_has_the_same_bits_whether_or_not_it_was_compared(fresh: Path, batch: int) -> None:
    (x, y), models = samples(), [network() for _ in range(2)]
    draws = []
    for model in models:
        torch.manual_seed(5)
        fuse(model, nn.CrossEntropyLoss(), SGD, batch).train_epoch(x, y, torch.arange(60))
        draws.append(float(torch.rand(())))
    assert all(torch.equal(*pair) for pair in zip(*(model.parameters() for model in models), strict=True))
    assert draws[0] == draws[1]


@pytest.mark.usefixtures("wrong")
def test_wrong_code_is_an_error_and_changes_nothing(fresh: Path) -> None:
    (x, y), model = samples(), network()
    before = copy.deepcopy(model)
    with pytest.raises(WrongCode, match=r"in a batch of 2, .* PyTorch's.*\.cpp.*compute='autograd'"):
        fuse(model, nn.CrossEntropyLoss(), SGD, 10).train_epoch(x, y, torch.arange(60))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before.parameters(), strict=True))
    assert notes(fresh) == [0]


@pytest.mark.usefixtures("wrong")
def test_wrong_code_ends_a_run_that_asks_for_it() -> None:
    with pytest.raises(JobError, match="generated code is wrong for this network"):
        train(a_job(), "sequential", engine="virtual", folder=None, compute="fused")


@pytest.mark.usefixtures("wrong")
def test_pytorch_trains_where_the_code_is_wrong_under_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FEW", 0), ("SOON", 0.0), ("LITTLE", float("inf"))):  # as in a long training
        monkeypatch.setattr(choice, name, value)
    with pytest.warns(JobWarning, match="generated code is wrong for this network.*as this run does"):
        run = train(a_job(), "sequential", engine="virtual", folder=None, compute="auto")
    assert run.summary()["compute"] == "autograd"


@pytest.mark.usefixtures("wrong")
def test_a_stack_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), models = samples(), [network() for _ in range(3)]
    monkeypatch.setitem(WRONG, "target", processors.replica_target)
    with pytest.raises(WrongCode, match="in a batch of 2"):
        fuse_replicas(models, nn.CrossEntropyLoss(), [SGD], 10).train_epochs(x, y, torch.stack([torch.arange(60)] * 3))


@pytest.mark.usefixtures("wrong")
def test_trials_are_stacked_by_pytorch_where_the_code_is_wrong() -> None:

    job = a_job(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 4)))
    with pytest.warns(JobWarning, match="as these trials do"):
        stack = Forms().stack("shape", [job, job], open_source(job.data, 0))
    assert isinstance(stack, VmapStack)


def test_statistics_that_move_are_compared(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradient shows them, and an evaluation goes by them."""

    def faster(plan: Plan, rule: Rule) -> str:
        whole = cpp.text(plan, rule)
        assert "R(0.1) *" in whole
        return whole.replace("R(0.1) *", "R(0.2) *")

    monkeypatch.setattr(
        processors.Form, "__init__", lambda self, **given: self.__dict__.update(WRONG | {"text": faster} | given)
    )
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4))
    x, y = samples()
    with pytest.raises(WrongCode, match=r"in a batch of 2, the buffer 1\.running_mean is"):
        fuse(model, nn.CrossEntropyLoss(), SGD, 10).train_epoch(x, y, torch.arange(60))


def test_rounding_is_no_fault(fresh: Path) -> None:
    """A network that amplifies the rounding of float32: what it tells samples apart by has few digits left."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 3))
    nn.init.constant_(model[0].bias, 1e5)
    x, y = torch.randn(20, 16), torch.randint(3, (20,))
    parts = [comparison.by_autograd(copy.deepcopy(model), nn.CrossEntropyLoss(), x, y, dtype) for dtype in REALS]
    gaps = [float((own - exact).norm() / exact.norm()) for own, exact in zip(*(p.values() for p in parts), strict=True)]
    assert max(gaps) > comparison.ROUNDING[torch.float32]
    fuse(model, nn.CrossEntropyLoss(), SGD, 10).train_epoch(x, y, torch.arange(20))
    assert notes(fresh) == [10]


def test_numbers_that_are_not_finite_are_not_compared(fresh: Path) -> None:
    (x, y), model = samples(), network()
    fuse(model, nn.CrossEntropyLoss(), SGD, 10).train_epoch(x * torch.nan, y, torch.arange(60))
    assert notes(fresh) == [0]


@pytest.mark.parametrize("dtype", REALS)
def test_what_is_left_of_gradients_that_are_zero_is_no_fault(fresh: Path, dtype: torch.dtype) -> None:
    """Of one class there is nothing to learn, nor of one feature that is normalised."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 1), nn.LayerNorm(1)).to(dtype)
    own = comparison.by_autograd(copy.deepcopy(model), nn.MSELoss(), torch.ones(4, 6), torch.zeros(4, 1), dtype)
    off = {name: number + torch.finfo(dtype).eps for name, number in own.items()}
    loss, (x, y) = nn.MSELoss(), (torch.ones(4, 6), torch.zeros(4, 1))
    assert comparison._difference(copy.deepcopy(model), off, own, loss, x, y) == ""
    far = {name: number + 1e-2 for name, number in own.items()}
    assert comparison._difference(copy.deepcopy(model), far, own, loss, x, y) != ""
