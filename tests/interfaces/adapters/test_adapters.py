"""Loops that other libraries own: their examples over gloo, over the backend and under a plan; how a plan ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import scripts
from tests.scripts import finish

FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = {  # the package it needs, the extra that brings it, what it takes
    "lightning_script": ("pytorch_lightning", "lightning", ("gloo", "paceline", "ring", "downpour")),
    "accelerate_script": ("accelerate", "accelerate", ("gloo", "paceline", "ring", "downpour")),
    "huggingface_trainer": ("transformers", "huggingface", ("gloo", "paceline")),
}
#: Tried in the soak: each starts four programs that import much, and Lightning's example takes the same ways.
RARE = ("accelerate_script", "huggingface_trainer")
# All by torchrun, though Lightning can start its processes itself: it chooses a port before it uses it, and meanwhile
# somebody else may take it.
WAYS = Path(__file__).with_name("ways.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SAYS = r"2 processes, (\w+): ([\d.]+)% right, loss ([\d.]+)"


def need(package: str, extra: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'paceline[{extra}]'")


def python(script: Path, *arguments: str, start: tuple[str | Path, ...] = ()) -> str:
    command = [sys.executable, *start, script, *arguments]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as torchrun has it
    done = subprocess.run(command, cwd=script.parent, env=one_thread, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("by_torchrun", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] * (name in RARE)) for name in EXAMPLES])
def test_an_example_trains_the_same_over_gloo_the_backend_and_a_synchronous_plan(
    name: str, by_torchrun: bool, tmp_path: Path
) -> None:
    package, extra, ways = EXAMPLES[name]
    need(package, extra)
    script = tmp_path / f"{name}.py"
    script.write_text((FOLDER / f"{name}.py").read_text())
    assert len(script.read_text().splitlines()) < 60
    if not by_torchrun:
        ways = ways[:3]  # one process under downpour is enough: the next tests
    if by_torchrun:
        said = "".join(python(script, way, start=TORCHRUN) for way in ways)
    else:
        said = python(script, *ways, start=(WAYS, package))
    found = re.findall(SAYS, said)
    assert [way for way, _, _ in found] == list(ways)
    assert all(float(right) > 95 for _, right, _ in found), found
    losses = {way: float(loss) for way, _, loss in found}
    for way in {"paceline", "ring"} & set(ways):
        assert losses[way] == pytest.approx(losses["gloo"], rel=1e-6), losses


def test_lightning_a_plan_begins_and_ends_with_the_training(tmp_path: Path) -> None:
    need("pytorch_lightning", "lightning")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import pytorch_lightning as lightning
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from paceline.interfaces.adapters.lightning import PacelineStrategy
        from paceline.errors import UsageError

        class Module(lightning.LightningModule):
            def __init__(self, optimizers=1):
                super().__init__()
                self.layer, self.many, self.manual = nn.Linear(4, 1), optimizers, optimizers > 1
                self.automatic_optimization = not self.manual
                self.fails_at = None

            def configure_optimizers(self):
                return [torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9) for _ in range(self.many)]

            def training_step(self, batch, number):
                assert "step" in vars(self.trainer.optimizers[0])
                if number == self.fails_at:
                    raise ZeroDivisionError("too hot")
                return self.layer(batch).square().mean()

        def fit(module, **more):
            quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
            trainer = lightning.Trainer(
                accelerator="cpu", devices=1, strategy=PacelineStrategy("downpour"), enable_checkpointing=False,
                **quiet, **more,
            )
            trainer.fit(module, DataLoader(torch.randn(40, 4), batch_size=4))
            return trainer

        module = Module()
        before = module.layer.weight.clone()
        trainer = fit(module)
        assert not torch.equal(before, module.layer.weight)
        (optimizer,) = trainer.optimizers
        assert "step" not in vars(optimizer)
        assert all("momentum_buffer" in optimizer.state[each] for each in module.parameters())
        trainer.save_checkpoint("it.ckpt")

        kept = torch.load("it.ckpt", weights_only=False)
        assert torch.equal(kept["state_dict"]["layer.weight"], module.layer.weight)

        module.fails_at = 5
        try:
            fit(module)
        except ZeroDivisionError:
            assert "step" not in vars(module.trainer.optimizers[0])
            print("failed, and the model is its own again")

        try:
            fit(Module(optimizers=2))
        except UsageError as error:
            print(error)
        """)
    )
    (done,) = finish([scripts.start(script, OMP_NUM_THREADS="1")])
    assert done.code == 0, done.err
    said = done.out
    assert "failed, and the model is its own again" in said
    assert "a plan goes with one optimizer, and this LightningModule has 2" in said


def test_accelerate_a_plan_takes_one_model_and_its_optimizer(tmp_path: Path) -> None:
    need("accelerate", "accelerate")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        from torch import nn
        from paceline.interfaces.adapters.accelerate import Accelerator
        from paceline.errors import UsageError

        accelerator = Accelerator("downpour")
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        try:
            accelerator.prepare(model)
        except UsageError as error:
            print(error)
        ready, wrapped = accelerator.prepare(model, optimizer)
        assert ready is model and "step" in vars(optimizer)
        before = model.weight.clone()
        for batch in torch.randn(20, 4).split(4):
            wrapped.zero_grad()
            accelerator.backward(model(batch).square().mean())
            wrapped.step()
        accelerator.end_training()
        assert "step" not in vars(optimizer) and not torch.equal(before, model.weight)
        assert all("momentum_buffer" in optimizer.state[each] for each in model.parameters())
        """)
    )
    (done,) = finish([scripts.start(script, OMP_NUM_THREADS="1")])
    assert done.code == 0, done.err
    said = done.out
    assert "a plan goes with one model and its optimizer, prepared together; here are 1 models and 0" in said
