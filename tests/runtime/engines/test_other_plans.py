"""A run that is resumed by another plan: the same numbers as one process, whatever lies where."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import JobWarning, PlanError, UsageError
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import difference
from paceline.interfaces.testing.jobs import JOBS, OPTIMIZERS
from paceline.runtime.engines.replay.replay import replay

#: Plans of one chunk, and of two; each begins a run or resumes that of the plan before it.
CHAINS = [
    ("mlp", "adam", ("tensor:workers=2", "sequential", "per_layer:workers=3,ways=0:columns", "gpipe:micro_batches=1")),
    (
        "mlp",
        "momentum",
        ("zero:workers=2", "mesh:data=2,layers=1,inside=2,micro_batches=1", "ring:workers=2", "zero:stage=1"),
    ),
    ("residual", "adagrad", ("one_weird_trick:workers=2", "layers", "tensor:workers=3")),
]


@pytest.mark.parametrize(("name", "optimizer", "plans"), CHAINS)
def test_each_plan_resumes_the_run_of_the_one_before(
    name: str, optimizer: str, plans: tuple[str, ...], tmp_path: Path
) -> None:
    job = JOBS[name]().with_(optimizer=OPTIMIZERS[optimizer], epochs=1)
    run = train(job, plans[0], folder=tmp_path, checkpoint_every=100)
    chunks = {"zero:workers=2": 2}.get(plans[0], 1)
    for epochs, plan in enumerate(plans[1:], start=2):
        run = train(resume=run.path, plan=plan, epochs=epochs)
        assert run.summary()["plan"].startswith(plan.partition(":")[0])
    oracle = train(job.with_(epochs=len(plans)), f"sequential:chunks={chunks}", engine="virtual", folder=None)
    assert difference(oracle.model, run.model) <= 1e-9
    assert run.path is not None
    with pytest.raises(UsageError, match="was resumed by other plans"):
        replay(run.path)


def test_what_holds_no_one_model_is_refused_and_other_chunks_are_told(tmp_path: Path) -> None:
    job = JOBS["mlp"]().with_(epochs=1)
    run = train(job, "sequential", folder=tmp_path, checkpoint_every=100)
    with pytest.raises(PlanError, match="under local_sgd workers have replicas"):
        train(resume=run.path, plan="local_sgd", epochs=2)
    with pytest.warns(JobWarning, match="into 2 chunks, and sequential had 1"):
        train(resume=run.path, plan="ring:workers=2", epochs=2)
