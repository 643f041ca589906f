"""A network on a GPU: what `fuse` gives back for a module whose parameters lie there."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.compiled import Call, Compiled
from paceline.kernels.cuda.device import Device, Launch, Program, nvidia
from paceline.kernels.cuda.ways import CAPTURED, WAYS, Updates, possible
from paceline.kernels.fused import REALS, Fused, how_made
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan
from paceline.kernels.printers.cuda import CHUNKS, THREADS, Own, text

REGISTERS = 64  # numbers that a thread may keep, with room for places
WORDS = ctypes.sizeof(Call) // 8
BARRIERS = 100_000  # of one launch
FEW = 64  # threads of a block where all that they do is to load: many blocks bring more at once
TRIAL = 64  # updates by which the ways are timed, at most
CHANGED = ("weights", "state", "gradients", "losses", "team")  # what an update writes


def on_device(
    model: nn.Module, loss: str, optimizer: Callable[..., torch.optim.Optimizer] | None, batch_size: int, index: int,
    l1: float,
) -> OnDevice:  # fmt: skip
    return OnDevice(model, loss, optimizer, batch_size, l1, nvidia(index))


class OnDevice(Fused):
    chunks = CHUNKS
    block = THREADS  # threads of a block

    def __init__(
        self, model: nn.Module, loss: str, optimizer: Callable[..., torch.optim.Optimizer] | None, batch_size: int,
        l1: float, device: Device, way: str = "",
    ) -> None:  # fmt: skip
        super().__init__(model, loss, optimizer, batch_size, 1, l1)
        self.device, self.where = device, device.where
        self.way = way  # of launching; none: what is fastest in the first epoch that is long enough to tell
        self.tried: dict[str, float] = {}  # seconds of an update, by way
        self._updates: dict[int, Updates] = {}  # by the compiled network

    # --- compiling ---

    def _target(self) -> Target:
        real = REALS[self.dtype]
        return Target(self.dtype.itemsize, real, REGISTERS, scalar=True)

    def _text(self, plan: Plan, rule: Rule) -> str:
        return text(plan, rule, self.block, self._own(plan))

    def _own(self, plan: Plan) -> Own:
        """What a block's own memory has room for; no other sample may ask for it."""
        found = Own()
        for more in (Own(arena=True), Own(arena=True, weights=True)):
            if len(plan.phases) == 1 and self._bytes(plan, more) <= self.device.shared:
                found = more
        return found

    def _bytes(self, plan: Plan, own: Own) -> int:
        return own.bytes(plan, self.dtype.itemsize)

    def _load(self, source: str) -> tuple[Any, Any, Any, bool]:
        program = self.device.load(source)
        return program, program, program.file, program.cached

    def _arenas(self, plan: Plan, batch: int) -> int:
        if len(plan.phases) > 1:
            return batch
        return 0 if self._own(plan).arena else self.chunks

    # --- running ---

    def _check_places(self, x: Tensor, y: Tensor, order: Tensor) -> None:
        """Samples may lie anywhere: what is not on the device is brought there."""

    def _work(self, made: Compiled, call: Call) -> None:
        updates = self._launched(made, call)
        way = "kernels" if call.update < 0 else self.way or self._fastest(made, updates, call)
        WAYS[way](updates, call.updates)

    def ways(self, x: Tensor) -> list[str]:
        """Of launching, that this device has for samples such as these."""
        return possible(self._updates_of(self._for(x)))

    def barriers(self, x: Tensor, y: Tensor, count: int) -> tuple[int, float]:
        """Nothing but the barrier of waiting blocks: (how many all came through, seconds of one)."""
        made = self._for(x)
        call, kept = self.call_for(made, x, y)
        updates = self._launched(made, call)
        for name in ("losses", "team"):
            made.memory[name].zero_()
        self.device.wait()
        begin = time.perf_counter()
        for first in range(0, count, BARRIERS):
            last = min(first + BARRIERS, count)
            updates.program.launch("paceline_barriers", updates.together(), updates.call, first, last)
        self.device.wait()
        seconds = (time.perf_counter() - begin) / count
        del kept
        return int(made.memory["losses"][0]), seconds

    def _launched(self, made: Compiled, call: Call) -> Updates:
        """The call in the device's memory, and how its kernels are launched."""
        updates = self._updates_of(made)
        words = (ctypes.c_int64 * WORDS).from_buffer(call)
        made.memory["call"].copy_(torch.tensor(list(words), dtype=torch.int64))
        return updates

    def _updates_of(self, made: Compiled) -> Updates:
        if id(made) not in self._updates:
            made.memory["call"] = torch.zeros(WORDS, dtype=torch.int64, device=self.where)
            own = self._bytes(made.plan, self._own(made.plan))
            how = Launch(min(self.chunks, self.batch_size), self.block, own)
            change = Launch(max(1, -(-made.plan.sizes["weights"] // FEW)), FEW)
            program: Program = made.run
            self._updates[id(made)] = Updates(
                self.device, program, how, change, len(made.plan.phases), made.memory["call"].data_ptr()
            )
        return self._updates[id(made)]

    def _fastest(self, made: Compiled, updates: Updates, call: Call) -> str:
        """Time each way on the numbers of this call, which are put back; once. Few updates tell nothing."""
        if call.updates < CAPTURED:
            return "kernels"
        before = {name: made.memory[name].clone() for name in CHANGED}
        count = min(TRIAL, call.updates)
        for name in possible(updates):
            for _ in range(2):  # the first time prepares
                made.memory["team"].zero_()
                self.device.wait()
                begin = time.perf_counter()
                WAYS[name](updates, count)
                self.device.wait()
                self.tried[name] = (time.perf_counter() - begin) / count
        for name, numbers in before.items():
            made.memory[name].copy_(numbers)
        self.way = min(self.tried, key=self.tried.__getitem__)
        return self.way

    # --- telling ---

    def _path(self, made: Compiled) -> list[str]:
        own, size = self._own(made.plan), self._bytes(made.plan, self._own(made.plan)) / 1024
        near = "a sample's numbers" + (", the weights and their gradient" if own.weights else "")
        lines = [
            f"path: generated CUDA C, {how_made(made)}, for {self.device}",
            f"text: {made.file.with_suffix('.cu')}",
            f"blocks: one per sample, of {self.block} threads, at most {self.chunks} to a batch; "
            + (f"{near} lie in the block's own {size:,.0f} KiB" if own.arena else f"{near} lie in the device's memory"),
        ]
        if self.tried:
            told = ", ".join(f"{name} {seconds * 1e6:,.1f} us" for name, seconds in self.tried.items())
            lines.append(f"an update, launched in each way: {told}; taken: {self.way}")
        return lines

    def _share(self, speed: float) -> str:
        return ""
