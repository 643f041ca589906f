"""Runs scripts of two ranks each, one after another: `python ways.py PACKAGE SCRIPT WAY...`.

The package, which takes seconds to import, is imported once. Every rank is forked from there by the same agent that
torchrun starts.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import uuid

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def rank(script: str, way: str) -> None:
    sys.argv[:] = [script, way]
    runpy.run_path(script, run_name="__main__")


def main(package: str, script: str, *ways: str) -> None:
    importlib.import_module(package)
    for way in ways:
        # As --standalone does: a store of its own at a port that it has chosen and holds.
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=2,
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            start_method="fork",
            monitor_interval=0.05,
        )
        elastic_launch(config, rank)(script, way)


if __name__ == "__main__":
    main(*sys.argv[1:])
