"""Scripts of Accelerate under `--ranks`: each rank has the state that the library keeps once for a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.concurrency.explore.session import Session, Settings, Target

SCRIPT = """
import sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(2, (8,))), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for x, y in data:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
if accelerator.is_main_process or "repaired" in sys.argv:
    accelerator.wait_for_everyone()
assert accelerator.gather(loss.detach()).shape == (2,)
"""


def test_a_barrier_of_the_main_process_alone_is_found_and_the_twin_is_silent(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    file = tmp_path / "app.py"
    file.write_text(SCRIPT)
    with Session() as session:
        finding = session.explore(Target(str(file)), Settings(ranks=2, first=True)).report["finding"]
        twin = session.explore(Target(str(file), arguments=("repaired",)), Settings(ranks=2, schedules=1))
    assert finding["message"] == f"rank 1 calls all_gather at {file}:19, rank 0 calls barrier at {file}:18"
    assert twin.report["verdict"] == "not found", twin.text
