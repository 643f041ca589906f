"""Loggers that write to trackers: MLflow's file store and W&B offline are read back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.errors import RunFailed, UsageError
from paceline.interfaces.callbacks.loggers import named, require
from tests.interfaces.callbacks.test_callbacks import job

pytestmark = pytest.mark.filterwarnings("ignore:::mlflow", "ignore:::wandb", "ignore::DeprecationWarning")


def test_mlflow_gets_figures_settings_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = pl.train(job(), "ring", 2, folder=tmp_path, loggers=["mlflow:experiment=small"])
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"file:{tmp_path / 'mlruns'}")
    experiment = client.get_experiment_by_name("small")
    (found,) = client.search_runs([experiment.experiment_id])
    assert run.path is not None
    assert (found.info.run_name, found.info.status) == (run.path.name, "FINISHED")
    assert found.data.params["plan"] == "ring:workers=2"
    history = {m.step: m.value for m in client.get_metric_history(found.info.run_id, "test_loss")}
    assert history == {each.updates: each.metrics["test_loss"] for each in run.record.history}

    class Bad:
        def on_evaluation_end(self, *_: Any) -> None:
            raise ValueError("bad hook")

    with pytest.raises((ValueError, RunFailed)):
        pl.train(job(), "ring", 2, folder=tmp_path, loggers=["mlflow:experiment=bad"], callbacks=[Bad()])
    (failed,) = client.search_runs([client.get_experiment_by_name("bad").experiment_id])
    assert failed.info.status == "FAILED"


WANDB = """
import sys
import paceline as pl
from tests.interfaces.callbacks.test_callbacks import job

if __name__ == "__main__":
    run = pl.train(job(), "sequential", folder=sys.argv[1], loggers=["wandb:mode=offline,project=small"])
"""


def test_wandb_writes_offline_into_the_runs_folder(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    # In a process of its own: the service of W&B lives as long as the process that logged.
    script = tmp_path / "train.py"
    script.write_text(WANDB)
    environment = {**os.environ, "WANDB_SILENT": "true", "PYTHONPATH": os.pathsep.join([*sys.path, str(Path.cwd())])}
    subprocess.run([sys.executable, str(script), str(tmp_path / "runs")], check=True, env=environment)
    (kept,) = (tmp_path / "runs").glob("*/wandb/offline-run-*/run-*.wandb")
    assert b"test_loss" in kept.read_bytes()
    assert b"batch_size" in kept.read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("wandb:projct=x", "logger wandb has no option 'projct'; did you mean 'project'"),
        ("mlflow:uri", "'uri' is no option=value, as in mlflow:uri="),
        ("mlflo", "did you mean 'mlflow'"),
    ],
)
def test_options_of_loggers_are_checked(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        named([text])


def test_a_package_that_is_not_there_is_named_with_its_command() -> None:
    with pytest.raises(
        UsageError, match=r"needs the package nowhere; install it by: pip install 'paceline\[nowhere\]'"
    ):
        require("nowhere", "the logger nowhere")


@pytest.mark.parametrize("callback", [pl.EarlyStopping(), pl.BestCheckpoint()])
def test_a_callback_that_follows_evaluations_needs_test_data(callback: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no test data; give test="):
        pl.train(job(test=None, evaluate_every=None), folder=tmp_path, callbacks=[callback])
