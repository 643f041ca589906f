"""The process that explores: `python -m paceline.concurrency.explore.worker`; it reads requests and writes answers.

It is a fresh interpreter, so that no module of the command line is part of the program under test, and it has a single
thread, so that it may fork for every run.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

from paceline.concurrency.explore import interpose
from paceline.concurrency.explore.report import Report, read_token
from paceline.concurrency.explore.rewriting.importing import Finder, Scope, compiled
from paceline.concurrency.explore.search import Explorer
from paceline.concurrency.explore.session import Settings, Target
from paceline.errors import PacelineError


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    interpose.install()
    while True:
        try:
            target, settings = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Report | str = _explore(target, settings)
        except PacelineError as error:
            answer = str(error)
        pickle.dump(answer, answers)
        answers.flush()


def _explore(target: Target, settings: Settings) -> Report:
    folders = [Path.cwd(), *([Path(target.file).resolve().parent] if target.file else []), *settings.scope]
    source = Path(target.file).read_text(encoding="utf-8", errors="replace") if target.file else ""
    if "mpi4py" in source:
        settings = replace(settings, ranks=settings.ranks or 2)
    if settings.ranks or "torch.distributed" in source:
        from paceline.concurrency.explore.ranks import launch  # which imports PyTorch

        launch.install()
        if "multiprocessing" in source and ("spawn(" in source or "Process(" in source):
            settings = replace(settings, ranks=0)  # the script starts its ranks itself
    compiled.clear()  # a file may have changed since the last request
    finder = Finder(Scope(folders))
    sys.meta_path.insert(0, finder)
    gc.collect()
    gc.freeze()
    try:
        if settings.replay:
            schedule = read_token(settings.replay)
            suspects = (schedule.suspect,) if schedule.suspect else ()
            return Explorer(target, replace(settings, suspects=suspects, passes=schedule.passes)).replay(schedule)
        explorer = Explorer(target, settings)
        return explorer.drill() if settings.drills else explorer.explore()
    finally:
        sys.meta_path.remove(finder)


if __name__ == "__main__":
    main()
