"""Random programs of mixed operations: the same over paceline and gloo; and with a fault, told by name.

    python benchmarks/backend/programs.py [--programs 1000] [--faults 200]

A program is a list of steps that all ranks draw from the same seed. A step is an operation with its shape, dtype and
root, waited for at once or some steps later. A fault is one step that one rank does otherwise, or does not live to do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
EXACT = (torch.float32, torch.float64)
SHAPES = ((1,), (13,), (3, 7), (40_000,))
LARGEST = 10.0  # about; of the numbers that are added up, and may cancel
WORLDS = (2, 3, 4)
FAULTS = ("operation", "shape", "dtype", "root", "left out", "killed", "raises", "hangs")
ROOTED = ("broadcasts", "reduces", "gathers", "scatters")
DEADLINE = 5.0  # of the groups with a fault
PATIENCE = 30.0  # with the processes


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    chance = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    drawn = torch.randn(shape, generator=chance)
    return drawn.to(dtype) if dtype.is_floating_point else (drawn * 3).abs().to(dtype)


def same(ours: Any, theirs: Any) -> None:
    """Gloo adds up in another order where there are more than two ranks."""
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if dist.get_world_size() <= 2 or not one.is_floating_point():
            assert torch.equal(one, other), (one, other)
        else:
            share = 1e-6 if one.dtype in EXACT else 1e-2
            largest = max([LARGEST, *other.abs().flatten().tolist()])
            torch.testing.assert_close(one, other, rtol=0, atol=share * largest)


OPERATIONS: dict[str, Callable[[Any, Tensor, int], list[Tensor]]] = {}


def operation(do: Callable[[Any, Tensor, int], list[Tensor]]) -> Callable[[Any, Tensor, int], list[Tensor]]:
    OPERATIONS[do.__name__] = do
    return do


def empties(like: Tensor) -> list[Tensor]:
    return [torch.zeros_like(like) for _ in range(dist.get_world_size())]


@operation
def sums(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.all_reduce(x, group=group)
    return [x]


@operation
def extremes(group: Any, x: Tensor, root: int) -> list[Tensor]:
    low = x.clone()
    dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
    return [x, low]


@operation
def products(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.all_reduce(x, dist.ReduceOp.PRODUCT, group=group)
    return [x]


@operation
def handles(group: Any, x: Tensor, root: int) -> list[Tensor]:
    y = x.clone()
    works = [dist.all_reduce(x, group=group, async_op=True), dist.broadcast(y, root, group=group, async_op=True)]
    future = works[0].get_future()
    works[1].wait()
    return [future.wait()[0], y]


@operation
def broadcasts(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.broadcast(x, root, group=group)
    return [x]


@operation
def reduces(group: Any, x: Tensor, root: int) -> list[Tensor]:
    dist.reduce(x, root, group=group)
    return [x] if dist.get_rank() == root else []


@operation
def gathers_all(group: Any, x: Tensor, root: int) -> list[Tensor]:
    outputs, whole = empties(x), torch.cat(empties(x))
    dist.all_gather(outputs, x, group=group)
    dist.all_gather_into_tensor(whole, x, group=group)
    return [*outputs, whole]


@operation
def gathers(group: Any, x: Tensor, root: int) -> list[Tensor]:
    outputs = empties(x) if dist.get_rank() == root else None
    dist.gather(x, outputs, root, group=group)
    return outputs or []


@operation
def scatters(group: Any, x: Tensor, root: int) -> list[Tensor]:
    inputs = [x * (rank + 1) for rank in range(dist.get_world_size())] if dist.get_rank() == root else None
    output = torch.zeros_like(x)
    dist.scatter(output, inputs, root, group=group)
    return [output]


@operation
def scatters_sums(group: Any, x: Tensor, root: int) -> list[Tensor]:
    inputs = [x * (rank + 1) for rank in range(dist.get_world_size())]
    outputs = [torch.zeros_like(x), torch.zeros_like(x)]
    dist.reduce_scatter(outputs[0], inputs, group=group)
    dist.reduce_scatter_tensor(outputs[1], torch.cat(inputs), group=group)
    return outputs


@operation
def all_to_all(group: Any, x: Tensor, root: int) -> list[Tensor]:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    given, taken = torch.cat([x] * ranks), torch.cat(empties(x))
    dist.all_to_all_single(taken, given, group=group)
    rows = [rank + other for other in range(ranks)]  # how many each pair exchanges, the same both ways
    some = numbers((sum(rows), 3), x.dtype)
    into = torch.zeros_like(some)
    dist.all_to_all_single(into, some, rows, rows, group=group)
    return [taken, into]


@operation
def letters(group: Any, x: Tensor, root: int) -> list[Tensor]:
    """Around the ring, tag after tag, received in another order."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks == 1:
        return []
    got = empties(x)
    works = [dist.isend(x + tag, (rank + 1) % ranks, group=group, tag=tag) for tag in range(ranks)]
    works += [dist.irecv(got[tag], (rank - 1) % ranks, group=group, tag=tag) for tag in reversed(range(ranks))]
    for work in works:
        work.wait()
    return got


@operation
def together(group: Any, x: Tensor, root: int) -> list[Tensor]:
    tensors = [x, x * 2, x[:1].clone()]
    with dist._coalescing_manager(group=group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    return tensors


@dataclass(frozen=True)
class Step:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    root: int
    seed: int
    wait_after: int  # so many steps later; only for what is called "later"
    fault: str = ""


def fall() -> None:
    raise ValueError("planted")


FALL: dict[str, Callable[[], Any]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raises": fall,
    "hangs": lambda: time.sleep(2 * DEADLINE),
}


def make(seed: int, ranks: int, steps: int = 8) -> list[Step]:
    chance = random.Random(seed)
    return [
        Step(
            chance.choice([*OPERATIONS, "later", "later"]),
            chance.choice(SHAPES),
            chance.choice(DTYPES),
            chance.randrange(ranks),
            100 * seed + number,
            chance.randrange(4),
        )
        for number in range(steps)
    ]


def spoil(program: list[Step], kind: str, at: int) -> list[Step]:
    """The program as the faulty rank has it."""
    step = program[at]
    other = {
        "operation": replace(step, name="gathers_all" if step.name == "products" else "products"),
        "shape": replace(step, shape=(*step.shape[:-1], step.shape[-1] + 1)),
        "dtype": replace(step, dtype=DTYPES[(DTYPES.index(step.dtype) + 1) % len(DTYPES)]),
        "root": replace(step, root=1 - min(step.root, 1)),
    }.get(kind, replace(step, fault=kind))
    return [*program[:at], *([] if kind == "left out" else [other]), *program[at + 1 :]]


def run(program: list[Step], group: Any) -> list[list[Tensor]]:
    """What each step gave."""
    found: list[list[Tensor]] = []
    waiting: list[tuple[int, Any]] = []
    for number, step in enumerate(program):
        for _, work in [pair for pair in waiting if pair[0] <= number]:
            work.wait()
        waiting = [pair for pair in waiting if pair[0] > number]
        if step.fault:
            FALL[step.fault]()
        x = numbers(step.shape, step.dtype, step.seed)
        if step.name == "later":
            kind = step.seed % 2
            given = dist.all_reduce if kind else dist.broadcast
            root = {} if kind else {"src": step.root}
            waiting.append((number + step.wait_after, given(x, group=group, async_op=True, **root)))
            found.append([x])
        else:
            found.append(OPERATIONS[step.name](group, x, step.root))
    for _, work in reversed(waiting):
        work.wait()
    return found


def compare(program: list[Step], ours: Any, theirs: Any) -> None:
    for step, one, other in zip(program, run(program, ours), run(program, theirs), strict=True):
        try:
            same(one, other)
        except AssertionError as error:
            raise AssertionError(f"{step}: {error}") from None


# Everything below is the benchmark.


def be_equal(rank: int, ranks: int, store: str, seeds: range) -> None:
    join(rank, ranks, store, 60.0)
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    for seed in seeds:
        compare(make(seed, ranks), ours, gloo)
    dist.barrier()
    dist.destroy_process_group()


def be_faulty(rank: int, ranks: int, store: str, seed: int, kind: str, culprit: int, at: int) -> None:
    join(rank, ranks, store, DEADLINE)
    program = make(seed, ranks)
    try:
        run(spoil(program, kind, at) if rank == culprit else program, None)
    except ValueError:
        raise
    except Exception as error:
        Path(f"{store} {rank}").write_text(f"{type(error).__name__}: {error}")
        os._exit(3)
    dist.destroy_process_group()
    Path(f"{store} {rank}").write_text("got through")


def join(rank: int, ranks: int, store: str, seconds: float) -> None:
    import paceline.backend

    torch.set_num_threads(1)
    sys.stderr = open(f"{store} {rank} said", "w")  # noqa: SIM115
    dist.init_process_group(
        paceline.backend.NAME, store=dist.FileStore(store, ranks), rank=rank, world_size=ranks,
        timeout=timedelta(seconds=seconds),
    )  # fmt: skip


def faults(count: int) -> list[tuple[int, str, int, int, int]]:
    """Of each kind about as many; a root only where there is one to get wrong."""
    chance, found, seed = random.Random(1), [], 0
    while len(found) < count:
        seed += 1
        ranks, kind, at = WORLDS[seed % 3], FAULTS[len(found) % len(FAULTS)], chance.randrange(1, 7)
        name = make(seed, ranks)[at].name
        if kind == "root" and name not in ROOTED:
            continue
        found.append((seed, kind, chance.randrange(ranks), at, ranks))
    return found


def verdict(text: str, culprit: int) -> bool:
    """Whether a rank that is not at fault names the one that is.

    Where calls differ, every rank's is told, and with more than two, who is not like the others; of a letter, both
    ends. Else who was waited for is named, and whom that one waited for in turn.
    """
    odd = re.findall(r"not like the others: rank (\d+)", text)
    if odd:
        return int(odd[-1]) == culprit
    if any(words in text for words in ("called different operations", "both must be the same", "UsageError")):
        return f"rank {culprit}" in text
    return any(f"{culprit}" in ranks.split(", ") for ranks in re.findall(r" for rank (\d+(?:, \d+)*)", text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=200)
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["paceline.backend.group"])
    figures: dict[str, Any] = {"programs": options.programs, "equal": 0, "faults": options.faults, "named": 0}
    with tempfile.TemporaryDirectory() as folder:
        slowest, wrong = 0.0, []
        for number, ranks in enumerate(WORLDS):
            seeds = range(number, options.programs, len(WORLDS))
            _, codes, _ = play(context, be_equal, ranks, f"{folder}/equal {ranks}", (seeds,), 1800.0)
            if codes == [0] * ranks:
                figures["equal"] += len(seeds)
            else:
                told = [Path(f"{folder}/equal {ranks} {rank} said").read_text()[-2000:] for rank in range(ranks)]
                wrong.append({"ranks": ranks, "codes": codes, "said": told})
                print(wrong[-1], flush=True)
        for seed, kind, culprit, at, ranks in faults(options.faults):
            arguments = (seed, kind, culprit, at)
            seconds, codes, said = play(context, be_faulty, ranks, f"{folder}/{seed}", arguments, PATIENCE)
            slowest = max(slowest, seconds)
            others = [text for rank, text in enumerate(said) if rank != culprit]
            if None not in codes and all(verdict(text, culprit) for text in others):
                figures["named"] += 1
            else:
                wrong.append({"seed": seed, "kind": kind, "culprit": culprit, "at": at, "codes": codes, "said": said})
                print(wrong[-1], flush=True)
        figures |= {"deadline, seconds": DEADLINE, "slowest end, seconds": round(slowest, 1), "wrong": wrong}
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from harness import write

    write(figures, "programs.json")


def play(
    context: Any, target: Callable[..., None], ranks: int, store: str, arguments: tuple[Any, ...], patience: float
) -> tuple[float, list[int | None], list[str]]:
    """How long it took, the exit codes (None for who did not end), and what the ranks wrote."""
    pool = [context.Process(target=target, args=(rank, ranks, store, *arguments)) for rank in range(ranks)]
    for process in pool:
        process.start()
    begun = time.monotonic()
    for process in pool:
        process.join(max(0.0, begun + patience - time.monotonic()))
    seconds, codes = time.monotonic() - begun, [process.exitcode for process in pool]
    for process in pool:
        process.kill()
        process.join()
    files = [Path(f"{store} {rank}") for rank in range(ranks)]
    return seconds, codes, [file.read_text() if file.exists() else "" for file in files]


if __name__ == "__main__":
    main()
