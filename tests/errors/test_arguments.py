"""Arguments of a wrong type get one sentence: what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import JobError, PacelineError, RunFolderError, TuningError, UsageError
from paceline.errors.arguments import check_arguments

X, Y = torch.rand(40, 5), torch.arange(40) % 2


def job(**changes: Any) -> pl.Job:
    given = {
        "model": lambda: nn.Linear(5, 2),
        "data": (X, Y),
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 10,
        "optimizer": partial(torch.optim.SGD, lr=0.1),
    }
    return pl.Job(**{**given, **changes})


def tune(**changes: Any) -> Any:
    return pl.tune(job(), {"lr": [0.1, 0.2]}, "grid", **{"folder": None, **changes})


def of_several_kinds(
    path: Path | str,
    *,
    many: Sequence[int] = (),
    share: float | None = 0.5,
    call: Callable[[], int] = int,
    flag: bool = False,
    hidden: NotHere | None = None,  # type: ignore[name-defined]  # noqa: F821
    any_value: Any = None,
) -> None:
    check_arguments(of_several_kinds, locals())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": 3}, "path=3 is of type int; give a path or a string"),
        ({"path": "x", "many": "ab"}, r"many='ab' is of type str; give a list, as in many=\['ab'\]"),
        ({"path": "x", "many": None}, "many=None is of type NoneType; give a list"),
        ({"path": "x", "share": True}, "share=True is of type bool; give a number or None"),
        ({"path": "x", "call": 3}, "call=3 is of type int; give a function"),
        ({"path": "x", "flag": "no"}, "flag='no' is of type str; give True or False"),
    ],
)
def test_the_sentence_names_the_argument_and_what_is_allowed(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=f"^{says}$"):
        of_several_kinds(**given)


def test_what_is_allowed_passes() -> None:
    of_several_kinds(Path("x"), many=[1], share=1, call=lambda: 1, flag=True, hidden=3, any_value=3)
    of_several_kinds("x", many=(1, 2), share=None)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: pl.train(job(), callbacks=3, folder=None), UsageError, "callbacks=3 .* give a list"),
        (lambda: pl.train(job(), callbacks="csv", folder=None), UsageError, "callbacks='csv' .* give a list, as in"),
        (lambda: pl.train(job(), loggers=None, folder=None), UsageError, "loggers=None .* give a list"),
        (lambda: pl.train(job(), folder=3), UsageError, "folder=3 .* give a string, a path or None"),
        (lambda: pl.train(job(), progress=3, folder=None), UsageError, "progress=3 is not a function"),
        (lambda: pl.train(job(), engine=3, folder=None), UsageError, "there is no engine 3; allowed: cluster, local"),
        (lambda: pl.NodeOptions(backups=-1), UsageError, "backups=-1 is not a whole number"),
        (lambda: pl.train(resume=3), UsageError, "resume=3 .* give a string, a path, a Run or None"),
        (lambda: pl.train(job(), compute=3), UsageError, "compute=3 .* give a string or None"),
        (lambda: pl.replay(3), UsageError, "run=3 .* give a Run, a string or a path"),
        (lambda: pl.replay(job()), UsageError, r"run=Job\(.* is of type Job; give a Run, a string or a path"),
        (lambda: pl.compare(job(), folder=3), UsageError, "folder=3 .* give a string, a path or None"),
        (lambda: pl.compare(job(), ["ring"], link=3), UsageError, "link=3 .* give a string or None"),
        (lambda: pl.choose(3), JobError, "job=3 is not a Job"),
        (lambda: pl.choose(job(), workers=2.5), UsageError, "workers=2.5 is not a whole number of at least 1"),
        (lambda: pl.choose(job(), card=3), UsageError, "card=3 .* give a string, a path, a Card or None"),
        (lambda: pl.simulate(job(), cluster=3), UsageError, "cluster=3 .* give a string, a path, a Cluster or None"),
        (lambda: pl.validate(job(), page="x.html"), UsageError, "page='x.html' .* give a path or None"),
        (lambda: pl.compress(3), UsageError, "run=3 .* give a Run, a string or a path"),
        (lambda: pl.Shards(3), UsageError, "folder=3 .* give a string or a path"),
        (lambda: pl.Stream(3), UsageError, "folder=3 .* give a string or a path"),
        (lambda: pl.Mix(3), UsageError, "weights=3 .* give a dictionary"),
        (lambda: tune(seconds="a"), UsageError, "seconds='a' .* give a number or None"),
        (lambda: tune(seconds=-1), TuningError, "seconds=-1 is not above 0"),
        (lambda: tune(max_t=0), TuningError, "max_t=0 is not above 0"),
        (lambda: tune(seed="a"), UsageError, "seed='a' .* give a whole number"),
        (lambda: tune(folder=3), UsageError, "folder=3 .* give a string, a path or None"),
        (lambda: pl.tune(objective=3, folder=None), UsageError, "objective=3 .* give a function or None"),
        (lambda: pl.EarlyStopping(patience=1.5), UsageError, "patience=1.5 is not a whole number of at least 1"),
        (lambda: pl.EarlyStopping(3), UsageError, "metric=3 .* give a string"),
        (lambda: pl.BestCheckpoint(file="../best.pt"), UsageError, "'../best.pt' is not the name of a file in the run"),
        (lambda: job(name=3), JobError, "name=3 .* give a string"),
        (lambda: job(shuffle="no"), JobError, "shuffle='no' .* give True or False"),
        (lambda: job(compile_options=3), JobError, "compile_options=3 .* give a dictionary or None"),
        (lambda: job(metrics={3: len}), JobError, "a metric called 3; give it a name"),
        (lambda: pl.train(job(lr_scheduler=torch.optim.lr_scheduler.StepLR)), JobError, "lr_scheduler= fails: TypeErr"),
    ],
)
def test_a_public_function_refuses_it_before_anything_starts(
    call: Callable[[], Any], error: type[PacelineError], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "is damaged: it names no plan; give the folder of another run"),
        ("hello", "is damaged: Expecting value"),
        ("[1, 2]", "is damaged: it holds a list, no object; give another folder"),
        ("null", "is damaged: it holds a NoneType, no object"),
    ],
)
@pytest.mark.parametrize("use", [pl.replay, lambda run: pl.train(resume=run)])
def test_a_damaged_record_is_named(use: Callable[[Path], Any], text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunFolderError, match=says):
        use(tmp_path)
