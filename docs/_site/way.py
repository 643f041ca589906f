"""Print the files of one update, from `paceline.train` on: python docs/_site/way.py ring

A second word, as in `downpour push`, leaves all but the functions of this name and what they call.

The parent's part is what is on its stack when it starts a worker. The worker's part is what is on its stack when it
computes, and every file of which it runs a line from there to the same place in its next update.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.runtime.engines.local import worker_pool

ROOT = str(Path(pl.__file__).parent)
FIRST = 5  # the update that is looked at: before, what is made once is made


def ours(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of Paceline from here to the outermost."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOT):
            yield frame
        frame = frame.f_back


class Way:
    """The lines that a worker runs, by file; with `within` those alone that it runs in functions of this name."""

    def __init__(self, place: str, within: str) -> None:
        self.place, self.within, self.calls = place, within, 0
        self.lines: dict[str, set[int]] = defaultdict(set)

    def step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Compute a loss, as a job's `step`; begin and end the recording."""
        self.calls += 1
        if self.calls == FIRST:
            frames = list(ours(sys._getframe(1)))
            for frame in () if self.within else frames:
                self.lines[frame.f_code.co_filename].add(frame.f_lineno)
                frame.f_trace = self.line
            sys.settrace(self.enter)
        elif self.calls == FIRST + 1:
            sys.settrace(None)
            lines = {name: len(numbers) for name, numbers in self.lines.items()}
            Path(self.place, f"{os.getpid()}.json").write_text(json.dumps(lines), encoding="utf-8")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        inside = not self.within or any(each.f_code.co_name == self.within for each in ours(frame))
        return self.line if inside else None

    def line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self.line


def main(plan: str, within: str = "") -> None:
    x = torch.randn(400, 20)
    stack: list[str] = []
    start = worker_pool.start_process

    def started(*arguments: Any, **options: Any) -> Any:
        stack[:] = [frame.f_code.co_filename for frame in ours(sys._getframe())]
        return start(*arguments, **options)

    worker_pool.start_process = started  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        job = pl.Job(
            model=lambda: nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2)),
            data=(x, (x.sum(1) > 0).long()),
            step=Way(folder, within).step,
            optimizer=partial(torch.optim.SGD, lr=0.1),
            batch_size=20,
            epochs=2,
        )
        pl.train(job, plan, folder=None)
        lines = json.loads(next(Path(folder).iterdir()).read_text(encoding="utf-8"))
    for name in () if within else stack:
        lines.setdefault(name, 0)
    for name, count in sorted(lines.items()):
        print(f"{count:>5} of {Path(name).read_text(encoding='utf-8').count(chr(10)):<4} {name[len(ROOT) + 1 :]}")
    size = sum(Path(name).read_text(encoding="utf-8").count("\n") for name in lines)
    print(f"{len(lines)} files of {size:,} lines; {sum(lines.values())} lines are run")


if __name__ == "__main__":
    main(*sys.argv[1:])
