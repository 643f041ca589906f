"""Nodes of a run, started as a launcher starts them, but forked from processes that have PyTorch loaded."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scripts import Ended, Running, finish, start

PATIENCE = 200.0  # seconds that something may take on a busy machine
#: The silence that peers bear, where no test stops a process: on a busy machine one that lives may be silent for long.
LONG = 60.0

TIMES = """
from paceline.runtime.engines.cluster import engine

engine.TIMING = engine.TIMING._replace(silence={silence}, handshake={long})
"""
SCRIPT = """
import json, sys
from pathlib import Path

import torch

import paceline as pl
from tests.runtime.engines.cluster.held import job

torch.set_num_threads(1)
options = json.loads(sys.argv[1])
folder = Path(__file__).parent
runs = folder / options.pop("runs", "runs")
found = []
for plan in options.pop("plans"):
    run = pl.train(job(folder, **options.pop("job", {})), plan, engine="cluster", folder=runs, **options)
    state = {name: value.double().flatten().tolist() for name, value in run.model.state_dict().items()}
    found.append({"summary": run.summary(), "state": state})
print(json.dumps(found))
"""


@dataclass
class Nodes:
    """The nodes of one run, rank after rank."""

    folder: Path
    running: list[Running]

    def held(self, count: int) -> list[int]:
        """Wait until so many workers have stopped at their step; return their processes."""
        until = time.monotonic() + PATIENCE
        while len(found := list(self.folder.glob("held-*"))) < count:
            assert time.monotonic() < until, [each.err.read_text() for each in self.running]
            time.sleep(0.01)
        return [int(path.name.removeprefix("held-")) for path in found]

    def release(self) -> None:
        """Let the workers go on."""
        (self.folder / "hold").unlink()

    def kill(self, rank: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the agent of a rank."""
        process = self.running[rank].process
        if process.is_alive():  # another process may have its number by now
            assert process.pid, "the node was not started"
            os.kill(process.pid, how)

    def end(self) -> list[Ended]:
        """Wait until every node has ended."""
        return finish(self.running, PATIENCE)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def nodes(
    folder: Path,
    count: int,
    plans: Sequence[str],
    text: str = SCRIPT,
    started: int | None = None,
    silence: float = LONG,
    launcher: Mapping[str, str] | None = None,
    **options: Any,
) -> Nodes:
    """Start `count` nodes, or only the first `started`, that train by these plans, one after another.

    `launcher` is what a launcher sets alike for all of them.
    """
    script = folder / "node.py"
    script.write_text(TIMES.format(silence=silence, long=LONG) + text)
    given = json.dumps({"plans": list(plans), **options})
    rank, shared = "RANK", dict(launcher or ())
    if launcher is None:
        rank, shared = "PACELINE_RANK", {"PACELINE_NODES": str(count), "PACELINE_HEAD": f"127.0.0.1:{free_port()}"}
    ranks = range(count if started is None else started)
    return Nodes(folder, [start(script, given, name=f"node-{r}", **{rank: str(r)}, **shared) for r in ranks])


def told(ended: Ended) -> list[dict[str, Any]]:
    """Return what a node that has finished says of its runs."""
    assert ended.code == 0, ended.err
    found: list[dict[str, Any]] = json.loads(ended.out)
    return found
