"""The built-in jobs: something to train on any machine, without a network.

    digits            scikit-learn's 1,797 images, enlarged and randomly shifted; a small convolutional net; always runs
    mnist-dnn         784-64-64-10, tanh, dropout, L2: the network of the parameter-server literature's small studies
    mnist-cnn         conv 6@5x5, trainable 4x4 subsampling with stride 4, dense 10
    cifar-resnet      a residual net on generated images of CIFAR's shape
    tiny-transformer  a two-layer transformer on generated sequences

The two mnist jobs read IDX files of MNIST's format from --data-dir, $PACELINE_DATA or Debian's dataset-fashion-mnist.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import JobError
from paceline.training.jobs.idx import read_idx
from paceline.training.jobs.job import Job
from paceline.training.jobs.modules import Residual, Subsampling

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
IMAGES = "train-images-idx3-ubyte"
Pair = tuple[Tensor, Tensor]


class IdxMissing(UserWarning):
    """No MNIST-format files were found; digits of the same shape are used instead."""


# --- data -----------------------------------------------------------------------------------------------------------


def digits(size: int, copies: int) -> tuple[Pair, Pair]:
    """Return scikit-learn's digits as (train, test).

    A fifth of the images is for testing. The rest are shifted by up to a tenth, `copies` times.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise JobError("the job 'digits' reads the images of scikit-learn, which is not installed")
    # `sklearn.datasets.load_digits` reads this file, too; the import of scikit-learn takes more than a second.
    with gzip.open(Path(package.origin).parent / "datasets/data/digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    x = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8) / 16)
    y = torch.from_numpy(table[:, -1].astype(np.int64))
    test = torch.arange(len(x)) % 5 == 0
    generator = torch.Generator().manual_seed(0)
    parts, count = [], int((~test).sum())
    for _ in range(copies):
        shift = (torch.rand(count, 2, generator=generator) - 0.5) * 0.4
        matrix = torch.eye(2, 3).repeat(count, 1, 1)
        matrix[:, :, 2] = shift
        grid = F.affine_grid(matrix, [count, 1, size, size], align_corners=False)
        parts.append(F.grid_sample(x[~test], grid, align_corners=False))
    train = torch.cat(parts), y[~test].repeat(copies)
    large = F.interpolate(x[test], (size, size), mode="bilinear", align_corners=False)
    return train, (large, y[test])


def idx_folder(data_dir: str | None) -> Path | None:
    """Return the folder with MNIST-format files, or None. Raise `JobError` if the one that is named has none."""
    for name, folder in {"--data-dir ": data_dir, "PACELINE_DATA=": os.environ.get("PACELINE_DATA")}.items():
        if folder and not _idx_file(Path(folder), IMAGES):
            raise JobError(f"{name}{folder} holds no {IMAGES}[.gz]; name the folder that does, or leave it out")
        if folder:
            return Path(folder)
    return DEBIAN if _idx_file(DEBIAN, IMAGES) else None


def mnist(data_dir: str | None) -> tuple[Pair, Pair]:
    """Return (train, test) as 28x28 images from 0 to 1 and labels."""
    folder = idx_folder(data_dir)
    if folder is None:
        warnings.warn(
            "no MNIST-format files in --data-dir, in $PACELINE_DATA or in Debian's package dataset-fashion-mnist "
            f"({DEBIAN}); training on scikit-learn's digits at 28x28 instead",
            IdxMissing,
            stacklevel=2,
        )
        (x, y), (xt, yt) = digits(28, 10)
        return (x.squeeze(1), y), (xt.squeeze(1), yt)
    return _idx_pair(folder, "train"), _idx_pair(folder, "t10k")


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((f for f in (folder / f"{name}.gz", folder / name) if f.is_file()), None)


def _idx_pair(folder: Path, part: str) -> Pair:
    x = _read_idx(folder, f"{part}-images-idx3-ubyte").astype(np.float32) / 255
    return torch.from_numpy(x), torch.from_numpy(_read_idx(folder, f"{part}-labels-idx1-ubyte").astype(np.int64))


def _read_idx(folder: Path, name: str) -> np.ndarray:
    file = _idx_file(folder, name)
    if file is None:
        raise JobError(f"{folder} holds no {name}[.gz]")
    array = read_idx(file)
    if array is None:
        raise JobError(f"{file} is not an IDX file of bytes")
    return array


def patterns(samples: int, shape: tuple[int, ...], classes: int, noise: float) -> tuple[Pair, Pair]:
    """Return (train, test) of one fixed random pattern per class, under noise."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, *shape, generator=generator)
    y = torch.randint(classes, (samples,), generator=generator)
    x = means[y] + noise * torch.randn(samples, *shape, generator=generator)
    cut = samples * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


# --- models ---------------------------------------------------------------------------------------------------------


def digits_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16 * 25, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def mnist_dnn() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 64),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 6, 5),
        nn.Sigmoid(),
        Subsampling(),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(6 * 36, 10),
    )


def cifar_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        Residual(16),
        Residual(16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class TinyTransformer(nn.Module):
    def __init__(self, width: int = 32, tokens: int = 16, features: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.place = nn.Parameter(torch.randn(tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(self.embed(x) + self.place).mean(1))
        return scores


# --- jobs -----------------------------------------------------------------------------------------------------------


def _job(name: str, model: Callable[[], nn.Module], data: tuple[Pair, Pair], **rest: Any) -> Job:
    train, test = data
    defaults: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "batch_size": 100,
    }
    return Job(model=model, data=train, test=test, name=name, origin=name, **{**defaults, **rest})


def _tanh_sgd() -> Callable[..., torch.optim.Optimizer]:
    return partial(torch.optim.SGD, lr=0.1, weight_decay=1e-5)


def _falling(updates: int) -> Callable[[torch.optim.Optimizer], Any]:
    """Return a schedule that lowers the learning rate to a twentieth over so many updates, and keeps it there.

    At a constant rate the accuracy of the last update is chance: it changes by several points between two evaluations.
    """
    return partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.05, total_iters=updates)


BUILT_IN: dict[str, Callable[[str | None], Job]] = {
    "digits": lambda _: _job(
        "digits",
        digits_net,
        digits(16, 20),
        epochs=2,
        evaluate_every=50,
        optimizer=partial(torch.optim.SGD, lr=0.15),
        lr_scheduler=_falling(2 * 288),
    ),
    "mnist-dnn": lambda d: _job("mnist-dnn", mnist_dnn, mnist(d), epochs=3, optimizer=_tanh_sgd(), evaluate_every=200),
    "mnist-cnn": lambda d: _job("mnist-cnn", mnist_cnn, mnist(d), epochs=1, batch_size=64, evaluate_every=200),
    "cifar-resnet": lambda _: _job(
        "cifar-resnet",
        cifar_resnet,
        patterns(5000, (3, 32, 32), 10, 4.0),
        epochs=1,
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        evaluate_every=20,
    ),
    "tiny-transformer": lambda _: _job(
        "tiny-transformer",
        TinyTransformer,
        patterns(5000, (16, 8), 10, 2.0),
        epochs=1,
        optimizer=partial(torch.optim.Adam, lr=2e-3),
        evaluate_every=20,
    ),
}


def built_in(name: str, data_dir: str | None = None) -> Job:
    """Return the built-in job of this name."""
    if data_dir is not None and "mnist" not in name:
        raise not_read(name, data_dir)
    return BUILT_IN[name](data_dir)


def not_read(job: str, data_dir: str) -> JobError:
    """Return the error for a folder of data that the job does not read."""
    return JobError(f"--data-dir {data_dir} is read by mnist-dnn and mnist-cnn alone, and not by {job}; leave it out")
