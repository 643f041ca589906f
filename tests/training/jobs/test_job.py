"""What a job may be: plain PyTorch is the oracle of `sequential`, and what cannot be trained says why."""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.errors import JobError, JobWarning, PacelineError, PlanError
from paceline.interfaces.testing.conformance import difference
from paceline.runtime.runs.record import read_record
from paceline.training.data.source import Order
from paceline.training.gradients.replica import Chance
from paceline.training.jobs.loading import load_job
from paceline.training.jobs.pickling import pack_program, unpack_program
from tests.scripts import finish, typed

# --- Every process that loads a user's file has the command line of that file's program -------------------------------

PARSES = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=4)
args = parser.parse_args()
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, args.width), nn.Tanh(), nn.Linear(args.width, 2))
    def forward(self, x):
        assert sys.argv[0].endswith("job.py"), sys.argv
        return super().forward(x)
"""
JOB = """
import torch
import beside_that_parses
import paceline
x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
job = paceline.Job(
    beside_that_parses.Net, (x, (x[:, 0] > 0).long()), torch.nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=10, device="cpu",
)
"""


def _paceline(*words: str, folder: Path) -> None:
    (done,) = finish([typed(folder, *words)])
    assert done.code == 0, done.err


def test_a_file_beside_the_job_parses_the_arguments_of_the_job(tmp_path: Path) -> None:
    """In the workers of a run, its replay, and where it is resumed; before, each had those of Paceline."""
    (tmp_path / "beside_that_parses.py").write_text(PARSES)
    (tmp_path / "job.py").write_text(JOB)
    _paceline("train", "job.py", "--plan", "ring", "--workers", "2", "--job-args", "--width 7", "-q", folder=tmp_path)
    (path,) = (tmp_path / "runs").iterdir()
    assert read_record(path).job.arguments == ("--width", "7")
    assert read_record(path).job.parameters == 3 * 7 + 7 + 7 * 2 + 2
    _paceline("replay", str(path), folder=tmp_path)
    _paceline("train", "job.py", "--resume", str(path), "--epochs", "2", "-q", folder=tmp_path)


def test_the_callers_own_arguments_are_back_after_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text(
        JOB.replace("import beside_that_parses\n", "").replace(
            "beside_that_parses.Net", "lambda: torch.nn.Linear(3, 2)"
        )
    )
    monkeypatch.setattr(sys, "argv", ["mine.py", "--own"])
    run = pl.train(load_job(str(tmp_path / "job.py"), job_args="--width 7"), folder=tmp_path / "runs")
    monkeypatch.setattr(sys, "argv", ["mine.py", "--own"])
    assert run.path is not None
    assert pl.replay(str(run.path)).matches
    assert sys.argv == ["mine.py", "--own"]


@pytest.mark.parametrize("inside", [True, False])
def test_what_argparse_refuses_is_named_with_the_arguments(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inside`: the job file itself parses; otherwise what it imports."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    needs = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('data')\nparser.parse_args()\n"
    (tmp_path / "needs_arguments.py").write_text(needs)
    (tmp_path / "job.py").write_text(needs if inside else "import needs_arguments\n")
    file = tmp_path / "job.py"
    with pytest.raises(JobError, match=r"job.py ends the program .* with sys.argv == \['.*job.py', '-x'\].*--job-args"):
        load_job(str(file), job_args="-x")


def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    with pytest.raises(JobError, match="No closing quotation; quote it"):
        load_job(str(tmp_path / "job.py"), job_args="'a")
    with pytest.raises(JobError, match="digits is a built-in job, which has no arguments"):
        load_job("digits", job_args="-x")


def test_a_program_on_another_machine_has_the_arguments_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent or a task of Ray is a program of Ray's."""
    monkeypatch.setattr(sys, "argv", ["job.py", "--width", "7"])
    packed = pack_program("the job")
    monkeypatch.setattr(sys, "argv", ["default_worker.py", "--ray"])
    assert (unpack_program(packed), sys.argv) == ("the job", ["job.py", "--width", "7"])


X = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (50,), generator=torch.Generator().manual_seed(1))
SGD = partial(torch.optim.SGD, lr=0.1)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def job(**changes: Any) -> pl.Job:
    given: dict[str, Any] = {
        "model": net,
        "data": (X, Y),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": SGD,
        "batch_size": 12,
        "epochs": 2,
    }
    return pl.Job(**{**given, **changes})


def virtual(made: pl.Job, plan: str = "sequential", **rest: Any) -> pl.Run:
    return pl.train(made, plan, engine="virtual", folder=None, **rest)


def plain_torch(made: pl.Job, schedule: Any = None, clip: float | None = None) -> nn.Module:
    """The loop a user would have written."""
    model = made.make_model()
    optimizer = made.optimizer(list(model.parameters()))
    pace = schedule(optimizer) if schedule else None
    order = Order(len(X), made.seed, True)
    for epoch in range(made.epochs):
        indices = order._epoch(epoch)
        for start in range(0, len(X), made.batch_size):
            which = indices[start : start + made.batch_size]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[which]), Y[which]).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if pace:
                pace.step()
    return model


@pytest.mark.parametrize("plan", ["sequential", "downpour:workers=1,shards=2", "ring:workers=3"])
def test_it_is_what_plain_torch_does(plan: str) -> None:
    assert difference(virtual(job(), plan).model, plain_torch(job())) < 1e-12


@pytest.mark.parametrize("plan", ["sequential", "downpour:workers=1,shards=2", "ring:workers=3"])
def test_schedules_and_clipping_are_plain_torchs(plan: str) -> None:
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.5)
    made = job(lr_scheduler=schedule, gradient_clip_norm=0.3, optimizer=partial(torch.optim.SGD, lr=0.5, momentum=0.9))
    assert difference(virtual(made, plan).model, plain_torch(made, schedule, 0.3)) < 1e-12


def test_a_schedule_under_asynchrony_follows_the_number_of_updates() -> None:
    made = job(lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.0), epochs=1)
    frozen = virtual(made, "downpour:workers=3").model
    once = virtual(made, "downpour:workers=3", max_updates=1).model
    assert difference(frozen, once) < 1e-12  # after the first update the rate is zero, whoever applies


def test_accumulation_is_one_update_of_a_larger_batch() -> None:
    assert difference(virtual(job(accumulate_grad_batches=2)).model, virtual(job(batch_size=24)).model) < 1e-12
    assert (
        difference(virtual(job(accumulate_grad_batches=2), "ring:workers=3").model, virtual(job(batch_size=24)).model)
        < 1e-12
    )


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        result: Tensor = self.a(x) + self.b(z)
        return result


def test_several_inputs() -> None:
    run = virtual(job(model=lambda: TwoInputs().double(), data=(X, X * 2, Y), test=(X, X * 2, Y)), "ring:workers=2")
    assert 0 <= run.summary()["test_accuracy"] <= 1


class Augmented(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(6, dtype=torch.float64) + random.random() + np.random.rand()
        return X[index] + noise, Y[index]


def test_augmentation_does_not_depend_on_who_loads_it() -> None:
    runs = [
        virtual(job(data=Augmented()), "sequential:chunks=2"),
        pl.train(job(data=Augmented()), "ring", workers=2, folder=None),
        pl.train(job(data=Augmented, num_workers=2), "ring", workers=2, folder=None),
    ]
    assert difference(runs[0].model, runs[1].model) < 1e-9
    assert runs[1].summary()["parameters_sha256"] == runs[2].summary()["parameters_sha256"]


def test_dropout_depends_on_the_chunk_and_the_module_alone() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    chance = Chance(module, seed=3)

    def draw(update: int, chunk: int, before: int) -> tuple[Tensor, Tensor]:
        torch.rand(before)
        chance.begin(update, chunk)
        first = module[0](torch.ones(40))
        torch.rand(before)
        return first, module[1](torch.ones(40))

    one, again, other = draw(1, 2, 0), draw(1, 2, 7), draw(1, 3, 0)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[1])


def test_a_loss_that_is_a_mean_is_not_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        virtual(job(), "ring:workers=2")


def test_the_rounding_of_a_users_own_autocast_is_not_reported() -> None:
    def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(batch[0])
        return nn.functional.cross_entropy(output.float(), batch[1])

    made = job(model=lambda: net().float(), data=(X.float(), Y), loss=None, step=step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        virtual(made, "ring:workers=2")
    with pytest.raises(JobError, match=r"under torch.autocast, .* give precision='bf16-mixed'"):
        virtual(made, "gpipe:workers=2")


def test_a_weighted_loss_is_found_and_weight_mends_it() -> None:
    weights = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    made = job(loss=nn.CrossEntropyLoss(weight=weights))
    with pytest.warns(JobWarning, match="not a mean over samples"):
        virtual(made, "ring:workers=2")
    with warnings.catch_warnings():  # no batch is split
        warnings.simplefilter("error")
        virtual(made)
    mended = made.with_(loss_denominator=lambda batch: float(weights[batch[1]].sum()))
    assert difference(virtual(mended, "ring:workers=3").model, virtual(mended).model) < 1e-10


def test_a_summed_loss_is_found() -> None:
    summed = job(loss=nn.CrossEntropyLoss(reduction="sum"), optimizer=partial(torch.optim.SGD, lr=1e-3))
    with pytest.warns(JobWarning, match="not a mean over samples"):
        virtual(summed, "ring:workers=2")


def test_bfloat16_trains() -> None:
    made = job(model=lambda: net().float(), data=(X.float(), Y), precision="bf16-mixed")
    assert virtual(made, "ring:workers=2").summary()["train_loss"] > 0


def test_metrics_and_snapshots() -> None:
    made = job(
        test=(X, Y),
        metrics={"share of class 0": lambda out, _: (out.argmax(1) == 0).double().mean()},
        evaluate_every=3,
    )
    for engine in ("virtual", "local"):
        run = pl.train(made, "downpour", workers=2, engine=engine, folder=None)
        assert [h["updates"] for h in run.history] == [3, 6, 9, 10]
        assert 0 <= run.summary()["share of class 0"] <= 1


def test_a_closure_of_a_notebook_travels() -> None:
    scale = torch.full((6,), 0.5, dtype=torch.float64)

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.linear(x * scale)
            return result

    run = pl.train(
        job(model=Local, step=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), loss=None),
        "ring",
        folder=None,
    )
    assert run.summary()["updates"] == 10


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss": None}, "neither loss= nor step= is given"),
        ({"step": lambda model, batch: model(batch[0]).sum()}, "not both"),
        ({"model": 3}, "neither an nn.Module"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"precision": "bf16"}, "did you mean 'bf16-mixed'"),
        ({"optimizer": torch.optim.SGD(net().parameters(), lr=0.1)}, "give a function that makes one"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS"),
        ({"data": (X, Y[:5])}, "differ"),
        ({"data": (X[:0], Y[:0])}, "no samples"),
        ({"data": (X.numpy().astype(str), Y)}, "array of <U"),
        ({"data": 5}, "neither a tuple of tensors"),
        ({"model": nn.ReLU}, "nothing to train"),
        ({"model": lambda: nn.Sequential(nn.Linear(6, 3).double(), nn.Linear(3, 3))}, "of 2 types"),
        ({"data": X}, r"step=f\(model, batch\)"),
    ],
)
def test_what_cannot_be_trained_says_why(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(JobError, match=says):
        virtual(job(**changes))


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(JobError) as caught:
        job(batch_size=0, epochs=-1, precision="x")
    assert str(caught.value).count("\n  - ") == 3


def test_what_cannot_be_sent_is_refused_before_the_start() -> None:
    lock = threading.Lock()
    made = job(step=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]) + 0 * lock.locked(), loss=None)
    with pytest.raises(JobError, match="cannot be sent to another process"):
        pl.train(made, "ring", folder=None)


def test_engines_and_devices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlanError, match="did you mean 'virtual'"):
        pl.train(job(), engine="virtaul")
    with pytest.raises(PlanError, match="real processes only"):
        virtual(job(), "ddp")
    with pytest.raises(JobError, match="is no device"):
        pl.train(job(device="gpu"), "ring", folder=None)
    assert issubclass(PlanError, PacelineError)


def test_numpy_arrays_train_as_the_tensors_that_they_hold() -> None:
    """Big-endian ones, views with negative strides, one array alone, and float64, which becomes the default type."""
    arrays = (X.numpy()[::-1].astype(">f8"), Y.numpy()[::-1])
    tensors = (X.flip(0).float(), Y.flip(0))
    made, plain = (job(model=lambda: net().float(), data=data, test=data) for data in (arrays, tensors))
    assert made.data[0].dtype == torch.float32
    assert difference(virtual(made).model, virtual(plain).model) == 0.0
    alone = job(data=X.numpy(), loss=None, step=lambda model, batch: model(batch[0].double()).sum())
    assert torch.equal(alone.data[0], X.float())


def test_frames_of_pandas_train_as_the_numbers_that_they_hold() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.numpy()).assign(target=Y.numpy(), kind="word")
    split = list(range(X.shape[1]))
    made = job(model=lambda: net().float(), data=(frame[split], frame["target"]))
    plain = job(model=lambda: net().float(), data=(X.float(), Y))
    assert difference(virtual(made).model, virtual(plain).model) == 0.0
    with pytest.raises(JobError, match="data= has a DataFrame of object; give one of numbers"):
        job(data=(frame, frame["target"]))


def test_a_step_may_return_its_loss_in_a_dictionary() -> None:
    def losses(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return {"loss": loss, "half": loss / 2}

    given = job(loss=None, step=losses, test=(X, Y))
    plain = given.with_(step=lambda model, batch: losses(model, batch)["loss"])
    one, other = (virtual(each, "ring:workers=2") for each in (given, plain))
    assert difference(one.model, other.model) == 0.0
    assert one.summary()["test_loss"] == other.summary()["test_loss"]
    with pytest.raises(JobError, match="a dictionary of age, sex; return one loss, such as sum"):
        virtual(given.with_(step=lambda model, batch: dict.fromkeys(("age", "sex"), losses(model, batch)["loss"])))


class NeedsTwo(torch.optim.SGD):
    """As a sharpness-aware optimizer, which evaluates the loss at two points."""

    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        closure()
        closure()


@pytest.mark.parametrize("plan", ["sequential", "ring", "sandblaster"])
def test_an_optimizer_that_needs_a_closure_is_refused_by_name_with_advice_that_helps(plan: str) -> None:
    for optimizer in (NeedsTwo, torch.optim.LBFGS):
        with pytest.raises(JobError, match=f"{optimizer.__name__} evaluates the loss .* give a first-order optimizer"):
            virtual(job(optimizer=partial(optimizer, lr=0.1)), plan)
