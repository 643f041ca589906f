"""Files that run code when they are read are only those of this user, and a line says so before."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from paceline.errors import JobError, SecurityError
from paceline.interfaces.api.tuning.tune import tune_from_files
from paceline.planning.tuner.journal import SCHEMA
from paceline.planning.tuner.varied import tuned_job
from paceline.runtime.engines.job_file import load_job_file
from paceline.training.jobs.loading import load_job
from paceline.training.jobs.pickling import announce_code

# --- Job files in TOML ------------------------------------------------------------------------------------------------

JOB = """
from functools import partial
import paceline, torch
from torch import nn
job = paceline.Job(model=lambda: nn.Linear(3, 2), data=(torch.rand(40, 3), torch.zeros(40).long()),
    loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10)
other = job.with_(epochs=7)
"""


@pytest.fixture
def toml_file_folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(JOB)
    return tmp_path


def load(toml_file_folder: Path, text: str) -> Any:
    (toml_file_folder / "job.toml").write_text(text)
    return load_job(str(toml_file_folder / "job.toml"))


def test_settings_change_the_job_that_the_file_starts_from(toml_file_folder: Path) -> None:
    job = load(
        toml_file_folder,
        '[job]\nfrom = "mine.py"\nepochs = 3\ngradient_clip_norm = 1\nprecision = "bf16-mixed"\nshuffle = false\n'
        '[job.optimizer]\nname = "AdamW"\nlr = 0.01\n[job.lr_scheduler]\nname = "StepLR"\nstep_size = 2\n',
    )
    assert (job.epochs, job.gradient_clip_norm, job.precision, job.shuffle) == (3, 1, "bf16-mixed", False)
    assert (job.name, job.batch_size) == ("job", 10)
    optimizer = job.make_optimizer(nn.Linear(2, 2), list(nn.Linear(2, 2).parameters()))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == 0.01
    assert job.lr_scheduler(optimizer).step_size == 2


def test_it_may_start_from_another_name_a_built_in_job_or_another_file(toml_file_folder: Path) -> None:
    assert load(toml_file_folder, '[job]\nfrom = "mine.py:other"\n').epochs == 7
    assert load(toml_file_folder, '[job]\nfrom = "digits"\nepochs = 2\n').epochs == 2
    (toml_file_folder / "base.toml").write_text('[job]\nfrom = "mine.py"\nepochs = 5\nseed = 9\n')
    job = load(toml_file_folder, '[job]\nfrom = "base.toml"\nepochs = 6\n')
    assert (job.epochs, job.seed) == (6, 9)


def test_a_run_of_it_is_replayed(toml_file_folder: Path) -> None:
    job = load(toml_file_folder, '[job]\nfrom = "mine.py"\n[job.optimizer]\nname = "Adam"\n')
    run = paceline.train(job, engine="virtual", folder=toml_file_folder / "runs")
    assert paceline.replay(run).matches


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[job", "does not parse"),
        ("[jobs]\n", r"has a table \[jobs\]"),
        ("", r"has no table \[job\]"),
        ("[job]\nepochs = 3\n", "does not say which job it starts from"),
        ("[job]\nfrom = 'mine.py'\nepoch = 3\n", "did you mean 'epochs'"),
        ("[job]\nfrom = 'mine.py'\nepochs = 'three'\n", "epochs = 'three' is not of type int"),
        ("[job]\nfrom = 'mine.py'\nepochs = true\n", "epochs = True is not of type int"),
        ("[job]\nfrom = 'mine.py'\nepochs = 0\n", "epochs=0 is not a whole number"),
        ("[job]\nfrom = 'their.py'\n", "there is no file"),
        ("[job]\nfrom = 'mine.py'\noptimizer = 'SGD'\n", "optimizer is a table"),
        ("[job]\nfrom = 'mine.py'\n[job.optimizer]\nname = 'SDG'\n", "did you mean 'SGD'"),
    ],
)
def test_what_is_wrong_is_said(toml_file_folder: Path, text: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        load(toml_file_folder, text)


def test_the_best_job_of_its_tuning_is_found_from_any_folder(
    toml_file_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (toml_file_folder / "job.toml").write_text('[job]\nfrom = "mine.py"\n')
    monkeypatch.chdir(toml_file_folder)
    found = paceline.tune("job.toml", {"lr": [0.1, 0.2]}, "grid", executor="here", folder=toml_file_folder / "runs")
    monkeypatch.chdir(toml_file_folder.parent)
    assert found.path is not None
    assert found.best is not None
    module = nn.Linear(3, 2)
    optimizer = load_job(str(found.path / "best.py")).make_optimizer(module, list(module.parameters()))
    assert optimizer.param_groups[0]["lr"] == found.best.configuration["lr"]


OTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


class Payload:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's and a tuning's folder at once, all of whose code makes the file `ran`."""
    made = tmp_path / "received"
    made.mkdir()
    ran = tmp_path / "ran"
    (made / "job.pickle").write_bytes(pickle.dumps(Payload(ran)))
    code = f"__import__('pathlib').Path({str(ran)!r}).touch(); raise SystemExit('the code ran')"
    (made / "job.py").write_text(code)
    (made / "space.py").write_text(code)
    head = {"row": "study", "schema": SCHEMA, "job": str(made / "job.py"), "space": {}, "search": "random", "seed": 0}
    head |= {"metric": "value", "mode": "min", "max_t": 1, "steps_per_epoch": 1, "plan": None, "data_dir": None}
    (made / "journal.jsonl").write_text(json.dumps({**head, "budget": 1, "trials_run": "here"}) + "\n")
    return made


READERS: dict[str, Callable[[Path], object]] = {
    "job.pickle": load_job_file,
    "best.py": lambda folder: tuned_job(folder / "job.pickle", {}),
    "tune --resume": lambda folder: tune_from_files(None, None, "random", resume=folder),
    "tune --resume JOB": lambda folder: tune_from_files("digits", None, "random", resume=folder),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_code_that_will_run_is_named_before(reader: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException):  # noqa: B017 (each reader refuses what the code leaves in its own way)
        READERS[reader](folder)
    assert (folder.parent / "ran").exists()
    said = capsys.readouterr().err
    assert "paceline: runs the code in " in said
    assert {"tune --resume": "job.py", "tune --resume JOB": "space.py"}.get(reader, "job.pickle") in said


@as_root
@pytest.mark.parametrize("reader", READERS)
def test_code_of_another_user_is_not_run(reader: str, folder: Path) -> None:
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(SecurityError, match=r"belongs to another user \(uid 65534.*the copy is yours"):
        READERS[reader](folder)
    assert not (folder.parent / "ran").exists()


def test_code_that_every_user_may_change_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "job.pickle"
    file.touch()
    file.chmod(0o646)
    with pytest.raises(SecurityError, match=r"every user of this machine may write to .*job\.pickle"):
        announce_code(file)
    file.chmod(0o664)
    announce_code(file)
    tmp_path.chmod(0o777)
    with pytest.raises(SecurityError, match="chmod o-w"):
        announce_code(file)
    tmp_path.chmod(0o1777)  # a folder such as /tmp, where no one removes or replaces what another owns
    announce_code(file)
