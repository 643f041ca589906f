"""The process that explores: `python -m paceline.concurrency.explore.worker`; a line of JSON is a request, and one its
answer.

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

from paceline.concurrency.explore import interpose
from paceline.concurrency.explore.report import Report
from paceline.concurrency.explore.rewriting.importing import Finder, Scope
from paceline.concurrency.explore.scheduler import Bounds
from paceline.concurrency.explore.search import Explorer
from paceline.concurrency.explore.settings import Settings, Target
from paceline.concurrency.explore.token import read_token
from paceline.errors import PacelineError


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    interpose.install()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            report = _explore(request)
            answer = {"text": report.text(), "code": report.exit_code, "report": report.to_dict()}
        except PacelineError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def _explore(request: dict[str, Any]) -> Report:
    """Explore, replay or drill."""
    target = Target(**{**request["target"], "arguments": tuple(request["target"]["arguments"])})
    settings = Settings(**{**request["settings"], "bounds": Bounds(**request["settings"]["bounds"])})
    folders = [Path.cwd(), *([Path(target.file).resolve().parent] if target.file else []), *map(Path, request["scope"])]
    source = Path(target.file).read_text(encoding="utf-8", errors="replace") if target.file else ""
    if settings.ranks or "torch.distributed" in source:
        from paceline.concurrency.explore.ranks import install as install_ranks

        install_ranks()
    if "multiprocessing" in source and ("spawn(" in source or "Process(" in source):
        settings = replace(settings, ranks=0)  # the script starts its ranks itself
    finder = Finder(Scope(folders))
    sys.meta_path.insert(0, finder)
    gc.collect()
    gc.freeze()
    try:
        explorer = Explorer(target, settings)
        if request["replay"]:
            return explorer.replay(read_token(request["replay"]))
        return explorer.drill(request["drills"]) if request["drills"] else explorer.explore()
    finally:
        sys.meta_path.remove(finder)


if __name__ == "__main__":
    main()
