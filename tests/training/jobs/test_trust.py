"""Files that run code when they are read are only those of this user, and a line says so before."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import SecurityError
from paceline.interfaces.api.tuning.tune import tune_from_files
from paceline.planning.tuner.best import tuned_job
from paceline.planning.tuner.journal import SCHEMA
from paceline.runtime.engines.job_file import load_job_file
from paceline.training.jobs.trust import announce_code

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
