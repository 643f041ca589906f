"""`compress`: a trained network, small and fast enough. `paceline.compress` and `paceline compress` both call it."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import nn
from torch.nn.utils import parametrize
from torch.optim.lr_scheduler import LinearLR

from paceline.compression import result
from paceline.compression.onnx_file import check
from paceline.compression.precision import Precisions, precisions
from paceline.compression.reading import network_of
from paceline.compression.result import CONFIDENCE, Bounds, Compression, choose
from paceline.compression.samples import Samples, Score, divide, score_of, test_samples
from paceline.compression.search import WIDTHS, CortexM4, Here, SearchResult, Target, search
from paceline.errors import JobWarning, UsageError, suggest
from paceline.errors.arguments import check_arguments
from paceline.interfaces.api.lines import Say, to_stderr
from paceline.interfaces.api.loading import load_run
from paceline.interfaces.api.train import AUTO, plan_of, train
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.run import Run
from paceline.training.jobs.job import Job, threads

TARGETS: dict[str, Callable[[], Target]] = {"here": Here, "cortex-m4": CortexM4}
EPOCHS = 5  # of retraining, at least
CHECKED = 500  # samples by which an ONNX file is checked


def compress(
    run: Run | str | Path,
    within: float = 0.5,
    latency: str | float | None = None,
    size: str | int | None = None,
    *,
    target: str = "here",
    confidence: float = CONFIDENCE,
    plan: str | None = None,
    workers: int | None = None,
    epochs: int | None = None,
    widths: Sequence[float] = WIDTHS,
    seed: int = 0,
    job: Job | None = None,
    say: Say = to_stderr,
) -> Compression:
    """Search for the fastest form of a trained network within bounds, by measurements, and return all that was found.

    Args:
        run: A finished run or its folder.
        within: Points of accuracy that may be lost; 0.5: from 88.0% to 87.5%.
        latency: The bound on a call with one sample, as `"5us"` or a number of microseconds; on a Cortex-M4 the
            instructions, as `"110k"`.
        size: The bound on code and constants, as `"16KB"` or a number of bytes.
        target: `"here"` for this machine, or `"cortex-m4"`, whose instructions are counted in QEMU.
        confidence: How sure it has to be, by the validation samples, that no more than `within` is lost. With 0.5 the
            loss on these samples is taken as it is.
        plan: The plan by which narrowed networks are retrained. Default: one process.
        workers: The number of its workers.
        epochs: Epochs of each retraining. Default: twice those of the job, and at least 5; those of the job if it has
            a schedule.
        widths: The shares of its channels with which the network is tried.
        seed: Selects the training samples that are kept for validation.
        job: The job, where the run's folder could not keep it.
        say: A function that is called with lines about the progress. Default: prints to stderr.
    """
    check_arguments(compress, locals())
    begun = time.monotonic()
    platform = _target(target)
    bounds = Bounds(within, result.latency(latency, target != "here"), result.size(size), confidence)
    if not within >= 0 or not widths or not all(0 < width <= 1 for width in widths):
        raise UsageError(
            f"within={within} and widths={list(widths)}: give points from 0 on, and widths above 0, up to 1"
        )
    if not 0.5 <= confidence < 1:
        raise UsageError(f"confidence={confidence}: give a share from 0.5 to 0.999")
    job, module = _opened(run, job, say)
    module.eval()
    division, test = divide(job, seed), test_samples(job)
    platform.takes(network_of(module, division.ranges.x))  # what cannot be emitted is refused before the search
    score = score_of(job.loss, division.validation.y)
    again = _retraining(job.with_(data=division.training), plan, workers, epochs)
    with threads(1):
        search_result = search(module, division, score, again, platform, say, widths)
        return _chosen(search_result, job, platform.name, bounds, module, score, test, division.validation, begun)


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise UsageError(f"there is no target {name!r}; {suggest(name, TARGETS)}")
    return TARGETS[name]()


def _opened(run: Run | str | Path, job: Job | None, say: Say) -> tuple[Job, nn.Module]:
    """Return the job and the trained model of a run."""
    if isinstance(run, Run):
        return job or run.job, _plain(run.model)
    path = Path(run)
    if job is None and (path / "run.json").exists():
        say(f"reading {path / 'job.pickle'}, which runs code of its author; give job= instead for a run from elsewhere")
    opened = load_run(path, job)
    return opened.job, _plain(opened.model)


def _plain(module: nn.Module) -> nn.Module:
    """A module whose parametrized weights, such as those of weight_norm, have become ordinary ones."""
    if not any(map(parametrize.is_parametrized, module.modules())):
        return module
    twin = copy.deepcopy(module)
    for part in list(twin.modules()):
        parametrizations = getattr(part, "parametrizations", None)
        for name in list(parametrizations) if isinstance(parametrizations, nn.ModuleDict) else []:
            parametrize.remove_parametrizations(part, name)
    return twin


def _retraining(
    job: Job, plan: str | None, workers: int | None, epochs: int | None
) -> Callable[[nn.Module], nn.Module]:
    """Return what trains a narrowed module by the run's own job; its learning rate falls if the job has no schedule."""
    usual = max(2 * job.epochs, EPOCHS) if job.lr_scheduler is None else job.epochs  # for which a schedule was made
    job = job.untested().with_(epochs=epochs or usual, compute="auto", name=f"{job.name}-narrow")
    if job.lr_scheduler is None:
        samples = len(job.data[0]) if isinstance(job.data, tuple) else len(job.data)
        updates = job.epochs * max(samples // job.batch_size, 1)
        falling = partial(LinearLR, start_factor=1.0, end_factor=0.05, total_iters=updates)
        job = job.with_(lr_scheduler=falling, lr_scheduler_interval="update")
    if plan != AUTO and (plan is not None or workers is not None):
        set_up(job, plan_of(plan, workers, "local"), "local")  # what cannot be retrained is refused before the search

    def retrain(module: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)  # the run has issued it
            return train(job.with_(model=module), plan, workers, folder=None).model

    return retrain


def _chosen(
    search_result: SearchResult,
    job: Job,
    target: str,
    bounds: Bounds,
    module: nn.Module,
    score: Score,
    test: Samples | None,
    validation: Samples,
    begun: float,
) -> Compression:
    """Return the result; only now are the test data looked at."""
    point = choose(search_result.points, bounds)
    candidate = None if point is None else search_result.candidates[search_result.points.index(point)]
    model = None if candidate is None else candidate.module
    return Compression(
        job.name,
        target,
        bounds,
        search_result.points,
        point,
        search_result.trained,
        trained_on_test=_tested(score, module, test),
        on_test=_tested(score, model, test),
        model=model,
        network=None if candidate is None else candidate.network,
        whole=None if candidate is None else candidate.whole,
        samples=validation.x[:CHECKED],
        seconds=time.monotonic() - begun,
    )


def _tested(score: Score, module: nn.Module | None, test: Samples | None) -> float | None:
    """The accuracy on test data, where there is a network and there are such data."""
    return float(score.each(module, test).mean()) if module is not None and test is not None else None


def compare_precisions(
    run: Run | str | Path,
    within: float = 0.5,
    latency: str | float | None = None,
    size: str | int | None = None,
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    job: Job | None = None,
    say: Say = to_stderr,
) -> Precisions:
    """Measure a trained model of any kind in float32, bfloat16 and int8, by PyTorch's own means."""
    bounds = Bounds(within, result.latency(latency), result.size(size), confidence)
    job, module = _opened(run, job, say)
    division = divide(job, seed)
    validation, calibration = division.validation, division.ranges.x
    with threads(1):
        return precisions(job.name, module.eval(), validation, calibration, score_of(job.loss, validation.y), bounds)


def checked_onnx(compression: Compression) -> bytes:
    """Return the chosen network as ONNX, after ONNX Runtime has found the same labels as its module."""
    assert compression.model is not None
    assert compression.samples is not None
    content = compression.onnx()
    check(content, compression.model, compression.samples)
    return content
