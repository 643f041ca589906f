"""`mlflow`: a run of MLflow, on the server of MLFLOW_TRACKING_URI, or in `mlruns/` beside the run's folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from paceline.interfaces.callbacks.parsing import require
from paceline.runtime.runs.record import RunRecord
from paceline.runtime.runs.schema import to_dict

TAG = "paceline.run"  # holds the name of the run's folder, by which a resumed run finds its run of MLflow


@final
class MlflowRun:
    """A run with the name of the run's folder and the settings of its job. The step of a figure is the update.

    uri          where it is kept; default: MLFLOW_TRACKING_URI, or the folder `mlruns` beside the run's folder
    experiment   the experiment that it belongs to
    """

    def __init__(self, uri: str = "", experiment: str = "paceline") -> None:
        require("mlflow", "the logger mlflow")
        self.uri, self.experiment = uri, experiment
        self._client: Any = None
        self._run = ""

    def open(self, folder: Path, record: RunRecord) -> None:
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"file:{folder.resolve().parent / 'mlruns'}"
        if uri.startswith("file:"):  # MLflow 3 wants to be told that files are meant
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self._client = client = MlflowClient(tracking_uri=uri)
        stored_experiment = client.get_experiment_by_name(self.experiment)
        experiment = stored_experiment.experiment_id if stored_experiment else client.create_experiment(self.experiment)
        runs = client.search_runs([experiment], f"tags.`{TAG}` = '{folder.name}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return
        self._run = client.create_run(experiment, tags={TAG: folder.name}, run_name=folder.name).info.run_id
        for name, value in {"plan": record.plan, "workers": record.workers, **to_dict(record.job)}.items():
            client.log_param(self._run, name, value)

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, v, now, updates) for name, v in figures.items()])

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")
