"""Commands that run in the test's own process, through the same `main` as `paceline` itself."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

import paceline.interfaces.cli

JOB = """
import torch
from functools import partial
from torch import nn
import paceline as pl

def net():
    return nn.Linear(8, 3)

g = torch.Generator().manual_seed(0)
x = torch.randn(200, 8, generator=g)
job = pl.Job(model=net, data=(x, (x @ torch.randn(8, 3, generator=g)).argmax(1)), loss=nn.CrossEntropyLoss(),
             optimizer=partial(torch.optim.SGD, lr=0.5), batch_size=20, epochs=3, test=(x, (x @ torch.ones(8,
             3)).argmax(1)))
other = job.with_(epochs=1)
measured = job.with_(metrics={"share_of_0": lambda output, _: (output.argmax(1) == 0).float().mean()})
"""


#: Of all commands, once: it takes half the time of a command that is refused.
get_command = functools.cache(typer.main.get_command)


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process and folder."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` replaces it
    monkeypatch.setattr(typer.main, "get_command", get_command)
    monkeypatch.setattr(sys, "path", sys.path[:])  # a job file's folder is put first
    monkeypatch.setattr("paceline.interfaces.cli.terminal.reserve_stdout", lambda: None)  # for good

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["paceline", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            paceline.interfaces.cli.main()
        return Done(int(end.value.code or 0), *capsys.readouterr())

    return run
