"""The process that explores: `python -m paceline.explore.worker`, with its request as JSON on standard input.

It is a fresh interpreter, so that no module of the command line is part of the program under test, and it has a single
thread, so that it may fork for every run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.explore import interpose
from paceline.explore.report import Report
from paceline.explore.rewriting.importing import Finder, Scope
from paceline.explore.scheduler import Bounds
from paceline.explore.search import Explorer
from paceline.explore.settings import Settings, Target
from paceline.explore.token import read_token


def main() -> None:
    """Read a request, explore, and write the report as JSON."""
    request = json.loads(sys.stdin.buffer.readline())
    answer = os.dup(1)
    target = Target(**{**request["target"], "arguments": tuple(request["target"]["arguments"])})
    settings = Settings(**{**request["settings"], "bounds": Bounds(**request["settings"]["bounds"])})
    report = run(target, settings, request)
    os.write(answer, json.dumps({"text": report.text(), "code": report.exit_code, "report": report.to_dict()}).encode())


def run(target: Target, settings: Settings, request: dict[str, Any]) -> Report:
    """Explore, replay or drill."""
    folders = [Path.cwd(), *([Path(target.file).resolve().parent] if target.file else []), *map(Path, request["scope"])]
    interpose.install()
    sys.meta_path.insert(0, Finder(Scope(folders)))
    source = Path(target.file).read_text(errors="replace") if target.file else ""
    if settings.ranks or "torch.distributed" in source:
        from paceline.explore.ranks import install as install_ranks

        install_ranks()
    gc.collect()
    gc.freeze()
    if "multiprocessing" in source and "spawn(" in source:
        settings = replace(settings, ranks=0)  # the script starts its ranks itself
    explorer = Explorer(target, settings)
    if request["replay"]:
        return explorer.replay(read_token(request["replay"]))
    return explorer.drill(request["drills"]) if request["drills"] else explorer.explore()


if __name__ == "__main__":
    main()
