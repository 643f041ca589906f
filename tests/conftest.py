"""Every test is checked for what it leaves behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import math
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
import torch
import torch._dynamo  # which every optimizer's step imports
from hypothesis import HealthCheck, settings

from paceline.interfaces.testing.leaks import nothing_left_behind
from paceline.runtime.engines.workers.process import PRELOAD
from paceline.training.gradients import choice
from paceline.training.jobs import built_ins
from tests.compiled import kept_in

# The same examples in every run, however long a busy machine takes for one.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Let every worker of pytest-xdist import another share of the modules first.

    In a fresh clone modules are compiled where they are imported first, which takes half of a collection:
    workers that import in one order would each compile all of them.
    """
    worker = getattr(session.config, "workerinput", None)
    folders = [Path(each) for each in session.config.args if Path(each).is_dir()]
    modules = sorted({file for folder in folders for file in folder.resolve().rglob("test_*.py")})
    if worker is not None:
        for file in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # which the collection reports
                importlib.import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))
    return (yield)


@pytest.fixture(autouse=True, scope="session")
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files of another program in /tmp, or of another worker of pytest-xdist, are not this process's leaks."""
    gc.freeze()  # what PyTorch has made at its import outlives all tests: collections need not look at it
    tmp_path_factory.getbasetemp()  # stays where pytest puts it
    folder = tempfile.mkdtemp(prefix="pl-")  # short: sockets lie in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    # multiprocessing removes its own folder in there when the interpreter exits, so this one goes after it.
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All processes of a session share libraries, in pytest's cache where there is one."""
    cache = getattr(request.config, "cache", None)
    with kept_in(cache.mkdir("compiled") if cache is not None else tmp_path_factory.mktemp("compiled")):
        yield


#: What many workers, nodes and scripts of the tests import: the compiler of PyTorch alone, which the steps of
#: optimizers need that users write, takes 1.5 s.
IMPORTED_ONCE = (
    "torch._dynamo",
    "paceline.interfaces.api.train",
    "paceline.interfaces.cli",
    "paceline.interfaces.testing.survival.nodes",
    "paceline.runtime.engines.cluster.engine",
    "paceline.runtime.engines.cluster.worker",
    "paceline.runtime.engines.cluster.servers.processes",
)


@pytest.fixture(autouse=True, scope="session")
def _imported_once_for_all_workers() -> Iterator[None]:
    preload = forkserver.set_forkserver_preload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            forkserver,
            "set_forkserver_preload",
            lambda modules: preload([*(IMPORTED_ONCE if PRELOAD[0] in modules else ()), *modules]),
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _digits_drawn_once() -> Iterator[None]:
    """The job `digits` shifts its images anew whenever it is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(built_ins, "digits", functools.cache(built_ins.digits))
        yield


@pytest.fixture(autouse=True, scope="module")
def _collected_once() -> Iterator[None]:
    """Whatever a module's tests leave in caches stays: the collection that follows a run need not look at it again."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_test_depends_on_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch trains where a test does not say how gradients are computed, so that no clock chooses what it runs."""
    monkeypatch.setattr(choice, "FEW", math.inf)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(_own_temporary_folder: None) -> Iterator[None]:
    torch.set_num_threads(1)
    with nothing_left_behind():
        yield
