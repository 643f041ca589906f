"""The store in which rank 0 says at which port it listens, when torchrun has started the nodes."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed

from paceline.errors import RunFailed
from paceline.runtime.engines import cluster
from tests.runtime.engines.cluster.nodes import nodes, told


@contextmanager
def store(ranks: int) -> Iterator[dict[str, str]]:
    """Keep a store as torchrun's agent does, and yield what torchrun sets."""
    kept = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(kept.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "none",
    }


def test_ranks_meet_although_the_ports_beside_the_launchers_are_taken(tmp_path: Path) -> None:
    """Two runs, one after another: each has a port of its own."""
    with store(2) as launcher:
        taken = _take(int(launcher["MASTER_PORT"]) + 1)
        try:
            ended = nodes(tmp_path, 2, ["ring", "downpour"], launcher=launcher).end()
        finally:
            taken.close()
    first, second = (told(each) for each in ended)
    assert [run["state"] for run in first] == [run["state"] for run in second]


def _take(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return socket.socket()  # another program has it


def test_a_rank_0_that_does_not_come_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    with store(2) as launcher:
        roster = cluster.roster(launcher | {"RANK": "1"})
        begun = time.monotonic()
        with pytest.raises(RunFailed, match=r"rank 1 waited 0\.3 s for rank 0 to say where it listens, .*--timeout"):
            roster.located(0.3)
        assert time.monotonic() - begun >= 0.3


def test_a_store_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["paceline.runtime.engines.cluster.roster"], "CONNECTING", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    with pytest.raises(RunFailed, match=rf"the store of torchrun at 127\.0\.0\.1:{port}, .* set PACELINE_HEAD=host"):
        cluster.roster(environ).listening(1)
